"""What fails in a nursery comes out of it as itself."""

from __future__ import annotations

import pytest
import trio

from orchestrator.run.first_error import first_error


async def test_the_first_error_is_raised_with_its_cause_and_names_the_others() -> None:
    async def fail() -> None:
        raise LookupError("first") from KeyError("cause")

    async def fail_too() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ArithmeticError("second")

    async def run() -> None:
        with first_error():
            async with trio.open_nursery() as outer:
                outer.start_soon(fail_too)
                async with trio.open_nursery() as inner:
                    inner.start_soon(fail)

    with pytest.raises(LookupError, match="first") as raised:
        await run()
    assert isinstance(raised.value.__cause__, KeyError)
    assert raised.value.__suppress_context__
    assert raised.value.__notes__ == ["at the same time, another task raised ArithmeticError('second')"]


async def test_an_interrupt_goes_before_errors() -> None:
    interrupt = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt) as raised, first_error():
        raise BaseExceptionGroup("", [LookupError("first"), BaseExceptionGroup("", [interrupt])])
    assert raised.value is interrupt
    assert raised.value.__notes__ == ["at the same time, another task raised LookupError('first')"]


async def test_a_group_with_a_cancellation_is_left_to_trio() -> None:
    async def fail() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise LookupError

    async def run() -> None:
        with trio.CancelScope() as scope, first_error():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail)
                nursery.start_soon(trio.sleep_forever)
                scope.cancel()

    with pytest.raises(ExceptionGroup):
        await run()
