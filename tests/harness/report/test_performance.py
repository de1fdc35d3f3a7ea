"""The performance section: timings, missing timings, and no unfounded verdict."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import msgspec
import pytest

from attnproof.harness.model.run import OracleCount
from attnproof.harness.model.timing import BaselineResult, Interval, MachineRates, Work
from attnproof.harness.report.formats.performance_summary import summarize_performance
from attnproof.harness.report.page.html import render_html
from attnproof.harness.report.performance.section import build_baseline, build_performance
from attnproof.harness.report.shared.ratios import by_operation, drift, overall, pairs
from attnproof.harness.report.shared.timings import timing_rows
from attnproof.harness.report.terminal.bench import bench_text
from tests.harness.report import benchmarks
from tests.harness.report.runs import ORACLES, make_finding, make_timed_run, with_bench

STATES = ["missing", "damaged", "another machine"]


def text_of(source):
    texts = []
    parser = HTMLParser()
    parser.handle_data = texts.append
    parser.feed(re.sub("<(style|script)>.*?</", "</", source, flags=re.DOTALL))
    return " ".join(" ".join(texts).split())


def shown(run):
    return text_of(render_html(run, ORACLES))


def charts(run):
    view = build_performance(run)
    parts = [chart for part in view.parts.shown for chart in part.charts]
    single = [view.profile, view.history, view.control]
    return [*view.forests, *parts, *view.steps, *view.strips, *(c for c in single if c)]


def test_without_timings_the_section_is_one_line(passing):
    text = shown(passing)
    assert "Nothing was timed." in text
    assert "attnproof bench" in text
    assert "Geometric mean" not in text


def test_a_page_with_timings_begins_with_them(passing, slower):
    def order(run):
        return re.findall(r'<section id="(\w+)"', render_html(run, ORACLES))

    assert order(slower).index("performance") < order(slower).index("matrix")
    assert order(passing).index("performance") > order(passing).index("matrix")
    for headline in build_performance(slower).headlines:
        assert f"{headline.ratio} as fast" in shown(slower).partition("Machine and command")[0]


def test_every_chart_is_a_picture_with_words_and_a_table(slower):
    all_charts = charts(slower)
    assert len({chart.key for chart in all_charts}) == len(all_charts) > 15
    for chart in all_charts:
        svg = ET.fromstring(chart.svg)
        names = {child.tag: child.text for child in svg}
        assert names["title"]
        assert names["desc"]
        assert chart.reading.endswith(".")
        assert chart.table.rows
        assert all(len(row) == len(chart.table.head) for row in chart.table.rows)
        assert not re.search(r"nan|inf\b|-0\b", chart.svg)


def test_the_slowest_operation_comes_first(timed):
    (pair,) = pairs(timed.bench)
    rows = by_operation(timed.bench, pair)
    means = [row.geometric_mean for row in rows]
    assert means == sorted(means)
    total = overall(timed.bench, pair)
    assert total.worst.ratio == min(comparison.ratio for comparison in timed.bench.comparisons)
    assert sum(total.counts.values()) == len(timed.bench.comparisons)
    view = build_performance(timed)
    assert view.forests[0].table.rows[0][0] == rows[0].operation == view.parts.shown[0].name


def test_a_median_stands_with_its_interval_and_n(timed):
    timing = timed.bench.timings[0]
    changed = msgspec.structs.replace(
        timing, host=Interval(median_ns=12_345, low_ns=12_100, high_ns=12_600, samples=31)
    )
    timed.bench.timings[0] = changed
    text = shown(timed)
    assert "12.3 µs 12.1 to 12.6" in text
    assert "n = 31 samples each" in text


def test_numbers_of_samples_that_differ_get_a_column(timed):
    first = timed.bench.timings[0]
    timed.bench.timings[0] = msgspec.structs.replace(
        first, host=msgspec.structs.replace(first.host, samples=12)
    )
    parts = {part.name: part for part in build_performance(timed).parts.shown}
    part = parts[first.operation]
    assert part.head[-1] == "n"
    assert part.rows[0].cells[-1].value == "12 to 31"


def test_a_verdict_is_a_word_and_a_glyph(timed):
    text = shown(timed)
    for words in ("▲ faster", "▼ slower", "◇ no evidence"):
        assert words in text


def test_the_device_clock_gets_columns_and_charts_of_its_own(timed):
    operation = timed.bench.timings[0].operation
    for index, timing in enumerate(timed.bench.timings):
        if timing.operation == operation:
            host = timing.host
            device = msgspec.structs.replace(host, median_ns=host.median_ns / 7)
            timed.bench.timings[index] = msgspec.structs.replace(
                timing, device=device, device_ns=timing.host_ns
            )
    parts = {part.name: part for part in build_performance(timed).parts.shown}
    assert len(parts[operation].charts) == 2
    assert "optimized, device" in parts[operation].head
    assert all(len(row.cells) + 1 == len(parts[operation].head) for row in parts[operation].rows)


def test_costs_are_a_number_or_a_range(timed):
    part = build_performance(timed).parts.shown[0]
    counts = {
        name: dict(zip(part.costs.head[1:], row, strict=True)) for name, *row in part.costs.rows
    }
    assert counts["Allocations"]["optimized"] == "3"
    assert counts["Bytes allocated"]["optimized"] == "108 B to 12.1 KiB"
    assert "Launches" not in counts, "the CPU lane sees none"


def test_launches_have_a_column_where_any_lane_sees_them(timed):
    first = timed.bench.timings[0]
    costs = msgspec.structs.replace(first.costs, launches=1, syncs=0)
    timed.bench.timings[0] = msgspec.structs.replace(first, costs=costs)
    parts = {part.name: part for part in build_performance(timed).parts.shown}
    counts = {name: row for name, *row in parts[first.operation].costs.rows}
    assert counts["Launches"] == ["1", "n/a"]
    assert counts["Syncs"] == ["0", "n/a"]


def test_regressions_come_before_any_ratio(slower):
    text = shown(slower)
    assert "2 timings worse than baseline main" in text
    assert text.index("Worse than the baseline") < text.index("Times as fast: optimized")
    assert "allocations 3 to 4" in text
    assert "swap_blocks / optimized / decode, 8 requests" in text


def test_raw_samples_of_a_regression_show_the_expected_median(slower):
    strips = build_performance(slower).strips
    assert "expected from the baseline" in strips[0].svg
    assert "expected from the baseline" not in strips[-1].svg
    # One mark a sample: none is dropped.
    (mark,) = re.findall(r'd="([^"]+)" class="mark k0" stroke-width="5"', strips[0].svg)
    assert mark.count("M") == 31


@pytest.mark.parametrize("state", STATES)
def test_a_baseline_that_cannot_be_compared_is_incomplete_in_words(state, timed):
    baseline = BaselineResult(name="main", state=state, reason=f"it is {state} <b>")
    text = shown(with_bench(timed, baseline=baseline))
    assert "◐ Incomplete against baseline main" in text
    assert f"which is no pass: it is {state} <b>." in text
    assert "Nothing worse" not in text


def test_a_baseline_without_a_timing_in_common_is_no_pass(timed):
    baseline = BaselineResult(name="main", state="compared")
    comparison = build_baseline(with_bench(timed, baseline=baseline).bench)
    assert comparison.state == "open"
    assert "no timing in common" in comparison.sentence


def test_lost_timings_are_no_pass(slower):
    result = slower.bench.baseline
    fine = [r for r in result.regressions if r.verdict != "slower" and not r.costs]
    lossy = msgspec.structs.replace(result, regressions=fine)
    assert build_baseline(with_bench(slower, baseline=lossy).bench).state == "open"
    complete = msgspec.structs.replace(lossy, lost=[])
    assert build_baseline(with_bench(slower, baseline=complete).bench).state == "good"


def test_without_a_baseline_the_option_is_named(timed):
    text = shown(timed)
    assert "This run was not compared with an earlier one." in text
    assert "--save-baseline NAME" in text


def test_grown_counts_of_another_machine_are_still_worse(on_another_machine):
    comparison = build_baseline(on_another_machine.bench)
    assert comparison.state == "bad"
    assert "Exact counts were still compared: 1 grew." in comparison.sentence
    ((*_, time, _, _, counts),) = comparison.worse.rows
    assert (time, counts) == ("not compared", "allocations 3 to 4")


def test_the_history_is_in_units_of_the_control(slower):
    table = build_performance(slower).history.table
    assert table.head[-2:] == ("optimized", "vllm")
    assert [row[0] for row in table.rows] == ["first", "second", "this run"]
    history = [
        msgspec.structs.replace(past, control_ns=past.control_ns * 2)
        for past in slower.bench.history
    ]
    halved = build_performance(with_bench(slower, history=history)).history.table
    before, after = (float(chart_table.rows[0][-1].rstrip("×")) for chart_table in (table, halved))  # noqa: RUF001
    assert after == pytest.approx(before / 2, rel=0.01)


def test_steps_have_distribution_growth_and_operations(timed):
    text = shown(timed)
    assert "by geometric mean; at worst 2.10" in text
    assert "A step is build_slot_mapping and split_attn_metadata." in text
    assert "XFormersAttentionMetadataBuilder.build (not offered by vllm)" in text
    spread, growth = build_performance(timed).steps
    # 80 steps: eight beyond nine tenths, fewer than one beyond 99 %.
    assert spread.table.head == (
        "Candidate",
        "Steps",
        "10 % of steps within",
        "Median",
        "90 % of steps within",
    )
    assert growth.table.head[1:3] == ("1 request", "2 to 8 requests")


def test_workloads_of_one_number_of_requests_are_bars(timed):
    replaced = msgspec.structs.replace
    timings = [
        replaced(timing, workload=replaced(timing.workload, requests=8))
        for timing in timed.bench.timings
    ]
    steps = [
        replaced(trace, steps=[replaced(step, requests=8) for step in trace.steps])
        for trace in timed.bench.steps
    ]
    view = build_performance(with_bench(timed, timings=timings, steps=steps))
    chart = view.parts.shown[0].charts[0]
    bars = re.findall(r'd="M(\d+\.\d) \d+\.\dH(\d+\.\d)" class="k\d bar"', chart.svg)
    assert len(bars) == len(chart.table.rows)
    assert {left for left, _ in bars} == {bars[0][0]}  # all begin at 0
    assert "of each workload" in chart.title
    assert [chart.title.partition(":")[0] for chart in view.steps] == ["Time of a step"]


def test_rates_stand_beside_times_where_they_are_known(timed):
    replaced = msgspec.structs.replace
    first, *others = timed.bench.timings
    ns = first.host.median_ns
    # A copy of as many bytes takes half of the call's time.
    work = Work(bytes=round(2 * ns), flops=round(3000 * ns), copy_host_ns=ns / 2)
    run = with_bench(timed, timings=[replaced(first, work=work), *others])
    text = "2.00 GB/s, 50 % of a copy, 3.00 TFLOP/s"
    assert text in shown(run)
    assert bench_text(run).count(text) == 1
    assert "% of a copy" not in bench_text(timed)
    assert f"no rate in {len(timing_rows(timed.bench))} of " in bench_text(timed)
    assert f"no rate in {len(timing_rows(timed.bench)) - 1} of " in bench_text(run)
    slow = replaced(work, flops=round(20 * ns))
    run_on_a_cpu = with_bench(timed, timings=[replaced(first, work=slow), *others])
    assert "50 % of a copy, 20.0 GFLOP/s" in bench_text(run_on_a_cpu)
    [rate] = summarize_performance(run.bench).rates
    assert (rate.operation, rate.candidate, rate.clock) == (
        first.operation,
        first.candidate,
        "host",
    )
    assert (rate.of_copy, rate.teraflops_per_second) == pytest.approx((0.5, 3.0))
    assert rate.of_matmul is None
    assert build_performance(run).roofline is None


def test_a_roofline_shows_how_near_calls_are_to_the_machine(timed):
    replaced = msgspec.structs.replace
    first, second, *others = timed.bench.timings
    ns = first.host.median_ns
    # 10 TFLOP/s and 1 TB/s: 5 operations a byte are bound by the memory, 40 by the arithmetic.
    machine = MachineRates(bytes_per_second=1e12, flops_per_second=1e13)
    work = Work(bytes=round(400 * ns), flops=round(2000 * ns), copy_host_ns=ns, machine=machine)
    dense = replaced(work, bytes=round(50 * second.host.median_ns))
    dense = replaced(dense, flops=40 * dense.bytes)
    timings = [replaced(first, work=work), replaced(second, work=dense), *others]
    run = with_bench(timed, timings=timings)
    chart = build_performance(run).roofline
    assert [row[3:] for row in chart.table.rows] == [
        ("5.00", "2,000", "40 %"),
        ("40.0", "2,000", "20 %"),
    ]
    assert chart.title == "Roofline, by the host's clock"
    assert chart.svg.count('class="mark') == 2 * len({first.candidate, second.candidate})  # legend
    assert "TFLOP/s, 20 % of a product" in bench_text(run)
    assert "Roofline, by the host's clock" in shown(run)


def test_untimed_operations_are_listed_with_reasons(timed):
    text = shown(timed)
    assert "Not timed, with reasons" in text
    assert "a sequence of steps batch_sequence · optimized batch_sequence · vllm" in text


def test_known_deviations_of_timed_operations_are_listed(timed):
    first = timed.bench.timings[0]
    timed.bench.timings[0] = msgspec.structs.replace(first, deviations=("E3",))
    text = shown(timed)
    assert "Known deviations of timed operations" in text
    assert "E3 see the file of known deviations" in text


def test_conditions_have_noise_clock_and_drift(timed):
    text = shown(with_bench(timed, control_ns=[100.0] * 20 + [112.0] * 20))
    assert "3 of 200 comparisons called faster or slower before the floor" in text
    assert "Resolution of the clock 41.0 ns" in text
    assert "changed by +11 % from beginning to end" in text
    assert drift([1.0] * 4) is None


def test_one_candidate_alone_has_times_and_no_ratio(timed):
    timings = [t for t in timed.bench.timings if t.candidate == "optimized"]
    text = shown(with_bench(timed, timings=timings, comparisons=[]))
    assert "so there is no ratio" in text
    assert "Operation by operation" in text


@pytest.mark.parametrize(("operations", "failures"), [(40, 0), (60, 0), (60, 12)])
def test_a_full_benchmark_fits_in_half_a_megabyte(operations, failures):
    oracles = {f"oracle {i}": "A rule." for i in range(10)}
    names = tuple(f"make_an_operation_number_{i}" for i in range(operations))
    bench = benchmarks.compared(benchmarks.bench(names))
    run = make_timed_run("SLOWER", bench, findings=[make_finding(i) for i in range(failures)])
    counts = {name: OracleCount(checks=9) for name in oracles}
    run.operations[:] = [
        msgspec.structs.replace(result, cases=10_000, oracles=counts) for result in run.operations
    ]
    source = render_html(run, oracles)
    assert len(source.encode()) < (750_000 if failures else 500_000)
    assert ("Left out to keep this file small" in text_of(source)) == (operations > 40)


def test_slower_is_a_verdict_of_its_own(slower):
    source = render_html(slower, ORACLES)
    assert "<title>SLOWER · attnproof</title>" in source
    assert "Slower than the baseline allows: build_slot_mapping takes 18 % longer" in text_of(
        source
    )
    assert 'class="verdict verdict-slower"' in source


def test_strips_of_many_samples_or_wide_apart_stay_readable(timed):
    first, second = timed.bench.timings[:2]
    long = [100.0 + i % 7 for i in range(1_000)]
    timed.bench.timings[:2] = [
        msgspec.structs.replace(first, host_ns=long),
        msgspec.structs.replace(second, host_ns=[90_000.0 + i for i in range(1_000)]),
    ]
    compared = with_bench(timed, comparisons=timed.bench.comparisons[:1])
    (strip,) = build_performance(compared).strips
    assert "One sample in 3 is drawn." in strip.sentence
    assert "1 µs</tspan>" in strip.svg, "a logarithmic axis has labels between its ends"
    assert strip.table.rows[0][1] == "1,000"
