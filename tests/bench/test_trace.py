"""Chrome trace events."""

from __future__ import annotations

import json

from orchestrator.bench.trace import MAIN_ROW, Span, encode_trace

SPANS = [
    Span("worker 10", "create 64", 5_000, 2_500, "call", {"pipelines": 64}),
    Span("worker 2", 'na"me\n</script>', 4_000, 1_000),
    Span(MAIN_ROW, "merge", 9_000, 500, "merge"),
    Span("worker 2", "outer", 4_000, 4_000),
]


def test_spans_become_events_on_named_rows() -> None:
    document = json.loads(encode_trace(SPANS, process="p"))
    events = document["traceEvents"]
    names = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
    assert names == {0: MAIN_ROW, 1: "worker 2", 2: "worker 10"}
    complete = [each for each in events if each["ph"] == "X"]
    assert [(each["tid"], each["name"], each["ts"], each["dur"]) for each in complete] == [
        (0, "merge", 5.0, 0.5),
        (1, "outer", 0.0, 4.0),  # encloses the next, so it comes first
        (1, 'na"me\n</script>', 0.0, 1.0),
        (2, "create 64", 1.0, 2.5),
    ]
    assert complete[3]["args"] == {"pipelines": 64}
    assert complete[3]["cat"] == "call"
    assert [each["args"]["name"] for each in events if each["name"] == "process_name"] == ["p"]
    assert len({each["pid"] for each in events}) == 1, "names are of the process whose rows they name"
