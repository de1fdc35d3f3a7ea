"""The trace readers: every format, every error message, arrivals."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from attnproof.harness.cases.traces.formats import FORMATS, TraceError, TraceFormat, TraceRequest
from attnproof.harness.cases.traces.reading import (
    detect_format,
    poisson_arrivals,
    read_trace,
    spread_ticks,
)

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
MOONCAKE = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]}
QWEN = {
    "chat_id": 159,
    "parent_chat_id": -1,
    "timestamp": 61.114,
    "input_length": 30,
    "output_length": 4,
    "type": "text",
    "turn": 1,
    "hash_ids": [3, 9],
}
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
VIDUR = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n"
VLLM = {
    "request_id": "bench-0",
    "input_toks": 9,
    "output_toks": 2,
    "arrival_time": 1787267980.08,
    "queued_ts": 27536.5,
    "scheduled_ts": 27536.75,
}


def jsonl(*rows: dict[str, object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


CONTENTS: dict[str, tuple[str, list[TraceRequest]]] = {
    "azure": (
        # As published: CRLF, seven digits, no newline at the end.
        AZURE + "2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109",
        [TraceRequest(0.0, 374, 44), TraceRequest(4.314579, 396, 109)],
    ),
    "mooncake": (
        jsonl(MOONCAKE, {**MOONCAKE, "timestamp": 3000}, {**MOONCAKE, "timestamp": 3000}),
        [
            TraceRequest(0.0, 600, 5, (7, 8), 512),
            TraceRequest(3.0, 600, 5, (7, 8), 512),
            TraceRequest(4.5, 600, 5, (7, 8), 512),
        ],
    ),
    "qwen-bailian": (
        jsonl(QWEN, {**QWEN, "chat_id": "b", "timestamp": 61.614, "hash_ids": []}),
        [TraceRequest(0.0, 30, 4, (3, 9), 16), TraceRequest(0.5, 30, 4)],
    ),
    "burstgpt": (
        BURSTGPT + "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,0,1087,API log\n",
        [TraceRequest(0.0, 472, 18), TraceRequest(40.0, 1087, 0)],
    ),
    "vidur": (
        VIDUR + "3772,54,3826,69.85\n2015,156,2171,12.9\n",
        [TraceRequest(0.0, 3772, 54), TraceRequest(0.0, 2015, 156)],
    ),
    "vllm-bench": (
        jsonl(VLLM, {**VLLM, "queued_ts": 27537.0}),
        [TraceRequest(0.0, 9, 2), TraceRequest(0.5, 9, 2)],
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_detected_and_read(tmp_path: Path, name: TraceFormat) -> None:
    text, expected = CONTENTS[name]
    path = tmp_path / "trace"
    path.write_bytes(text.encode())
    assert detect_format(path) == name
    for override in (None, name):
        requests = read_trace(path, format=override, rate=math.inf)
        rounded = [r.arrival_s for r in requests]
        assert rounded == pytest.approx([r.arrival_s for r in expected], abs=1e-3)
        assert [(r.input_tokens, r.output_tokens, r.prefix_hashes) for r in requests] == [
            (r.input_tokens, r.output_tokens, r.prefix_hashes) for r in expected
        ]
        assert [r.tokens_per_hash for r in requests] == [r.tokens_per_hash for r in expected]


def test_rows_are_sorted_by_arrival_and_the_first_is_at_zero(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(BURSTGPT + "50,m,3,1,4,l\n40,m,1,1,2,l\n\n40,m,2,1,3,l\n")
    assert [(r.arrival_s, r.input_tokens) for r in read_trace(path)] == [(0, 1), (0, 2), (10, 3)]


ERRORS = {
    "empty": ("", "t.csv: is empty; give the path of a trace with at least one row"),
    "blank": ("\n\n", "t.csv: is empty; give the path of a trace with at least one row"),
    "only a header": (AZURE, "t.csv: no requests in it; give a trace with at least one row"),
    "unknown columns": (
        "a,b\n1,2\n",
        "t.csv:1: unknown trace format (columns: a, b); expected one of azure, mooncake, "
        "qwen-bailian, burstgpt, vidur, vllm-bench",
    ),
    "unknown keys": (
        '{"a": 1}\n',
        "t.csv:1: unknown trace format (columns: a); expected one of azure, mooncake, "
        "qwen-bailian, burstgpt, vidur, vllm-bench",
    ),
    "not JSON": ("{oops}\n", "t.csv:1: is not JSON; give one object a line"),
    "too few columns": (
        BURSTGPT + "1,m,3,1,4,l\n2,m,3\n3,m,3,1,4,l\n",
        "t.csv:3: 3 columns where the header has 6; repair or delete the row",
    ),
    "cut CSV row": (
        BURSTGPT + "1,m,3,1,4,l\n2,m,3",
        "t.csv:3: the file ends inside this row; copy the whole file again or delete the row",
    ),
    "cut time": (
        AZURE + "2023-11-16 18:15:46.68,374,",
        "t.csv:2: the file ends inside this row; copy the whole file again or delete the row",
    ),
    "cut JSON row": (
        jsonl(MOONCAKE) + json.dumps(MOONCAKE)[:40],
        "t.csv:2: the file ends inside this row; copy the whole file again or delete the row",
    ),
    "bad JSON row": (
        jsonl(MOONCAKE) + "{oops}\n" + jsonl(MOONCAKE),
        "t.csv:2: is not JSON; repair or delete the row",
    ),
    "negative CSV count": (
        VIDUR + "5,-1,4,1\n",
        "t.csv:2: num_decode_tokens is '-1', not a whole number of tokens, 0 or more; "
        "repair or delete the row",
    ),
    "fractional CSV count": (
        VIDUR + "5.5,1,4,1\n",
        "t.csv:2: num_prefill_tokens is '5.5', not a whole number of tokens, 0 or more; "
        "repair or delete the row",
    ),
    "bad time": (
        AZURE + "yesterday,1,2\n",
        "t.csv:2: timestamp is 'yesterday', not a time; repair or delete the row",
    ),
    "bad fraction": (
        AZURE + "2023-11-16 18:15:46.6x,1,2\n",
        "t.csv:2: timestamp is '2023-11-16 18:15:46.6x', not a time; repair or delete the row",
    ),
    "endless time": (
        BURSTGPT + "inf,m,3,1,4,l\n",
        "t.csv:2: timestamp is 'inf', not a time; repair or delete the row",
    ),
    "negative JSON count": (
        jsonl({**MOONCAKE, "input_length": -3}),
        "t.csv:1: Expected `int` >= 0 - at `$.input_length`; repair or delete the row",
    ),
    "fractional JSON count": (
        jsonl({**MOONCAKE, "output_length": 1.5}),
        "t.csv:1: Expected `int`, got `float` - at `$.output_length`; repair or delete the row",
    ),
    "missing JSON key": (
        jsonl(QWEN, {k: v for k, v in QWEN.items() if k != "hash_ids"}),
        "t.csv:2: Object missing required field `hash_ids`; repair or delete the row",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_the_line_and_a_remedy(tmp_path: Path, name: str) -> None:
    text, message = ERRORS[name]
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert str(caught.value).replace(f"{tmp_path}/", "") == message


def test_wrong_format_override_names_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(VIDUR + "1,2,3,4\n")
    with pytest.raises(TraceError) as caught:
        read_trace(path, format="azure")
    assert str(caught.value).replace(f"{tmp_path}/", "") == (
        "t.csv:1: no column timestamp, contexttokens, generatedtokens; "
        "add the header line or choose another format"
    )


def test_unreadable_files_raise_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as missing:
        read_trace(tmp_path / "none.csv")
    assert str(missing.value).replace(f"{tmp_path}/", "") == (
        "none.csv: cannot be read (No such file or directory); give the path of a trace"
    )
    with pytest.raises(TraceError, match=r"^tmp.*cannot be read|cannot be read \(Is a directory\)"):
        read_trace(tmp_path)
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(b"\x1f\x8b\x08\xff\xfe")
    with pytest.raises(TraceError) as binary:
        read_trace(packed)
    assert str(binary.value).replace(f"{tmp_path}/", "") == (
        "t.csv.gz: is not UTF-8 text; unpack it or give the path of a trace"
    )


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbf" + (VIDUR + "1,2,3,4\n").encode())
    assert detect_format(path) == "vidur"


def test_arrivals_of_a_tick_are_spread_up_to_the_next_timestamp() -> None:
    arrivals = np.array([0.0, 0, 0, 3, 3, 6, 20, 20])
    spread = spread_ticks(arrivals)
    assert spread.tolist() == [0, 1, 2, 3, 4.5, 6, 20, 21.5]
    assert spread_ticks(np.zeros(3)).tolist() == [0, 0, 0]


def test_poisson_arrivals_have_the_given_rate() -> None:
    arrivals = poisson_arrivals(20_000, 4.0, seed=1)
    gaps = np.diff(arrivals)
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() == pytest.approx(0.25, rel=0.03)
    assert poisson_arrivals(5, math.inf, 1).tolist() == [0] * 5
    with pytest.raises(ValueError, match="rate: got 0, expected requests per second above 0"):
        poisson_arrivals(5, 0, 1)


@pytest.mark.parametrize(
    ("name", "rows", "first", "last_s"),
    [
        (
            "azure2023/AzureLLMInferenceTrace_conv.csv",
            19366,
            TraceRequest(0.0, 374, 44),
            3501.722,
        ),
        (
            "mooncake/conversation_trace.jsonl",
            12031,
            TraceRequest(0.0, 6758, 500, tuple(range(14)), 512),
            3539.571,
        ),
        (
            "vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv",
            28257,
            TraceRequest(0.0, 3772, 54),
            14004.243,
        ),
        ("vllm_runs/RTX4090_Llama-3.1-8B/requests.jsonl", 300, TraceRequest(0, 2358, 531), 29.121),
    ],
)
def test_real_traces(
    traces: Path, name: str, rows: int, first: TraceRequest, last_s: float
) -> None:
    requests = read_trace(traces / name)
    assert len(requests) == rows
    assert requests[0] == first
    assert requests[-1].arrival_s == pytest.approx(last_s, abs=1e-3)
    for request in requests:
        hashed = len(request.prefix_hashes) * request.tokens_per_hash
        assert not hashed or 0 <= hashed - request.input_tokens < 512
