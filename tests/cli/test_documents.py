"""The documents of --json: each verb has its type, each field its words, and the page says what types say."""

from __future__ import annotations

import pytest

from orchestrator.cli.application import VERBS
from orchestrator.cli.documents import Document
from orchestrator.cli.events import EVENTS
from orchestrator.run.commands import COMMANDS
from tests.drivers import REPOSITORY
from tests.run.report_page import DOCUMENTS, fields_of, page, parts_of, reachable


def test_every_verb_has_a_document() -> None:
    assert {parts_of(each)[0].strip("`").split()[0] for each in DOCUMENTS} == set(VERBS)
    assert all("version" in each.__struct_fields__ for each in DOCUMENTS)


@pytest.mark.parametrize(
    "kind",
    [
        *(each for kind in DOCUMENTS if issubclass(kind, Document) for each in reachable(kind)),
        *EVENTS,
        *COMMANDS,
    ],
    ids=lambda kind: kind.__name__,
)
def test_types_say_what_they_are_and_describe_no_field_that_is_not_there(kind: type) -> None:
    words, attributes = parts_of(kind)
    assert words
    assert attributes.keys() <= {name for name, _, _ in fields_of(kind)}


def test_the_page_says_what_the_types_say() -> None:
    assert (REPOSITORY / "docs" / "documents.md").read_text("utf-8") == page("documents")
    assert (REPOSITORY / "docs" / "control.md").read_text("utf-8") == page("control")
