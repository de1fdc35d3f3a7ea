"""The adapters of SGLang and FlashInfer, with stand-ins for both packages."""

from __future__ import annotations

import importlib
import shutil
import sys
from functools import partial

import pytest
import torch

from attnproof.harness.operations import ALL
from attnproof.harness.running.candidates import resolve, version_of
from attnproof.harness.running.engines import untried_notes
from attnproof.harness.running.interface_choice import with_interface
from attnproof.harness.running.loading import offered_by
from attnproof.harness.running.releases import TRIED
from tests.harness.adapters.conftest import RELEASES

ADAPTERS = "attnproof.harness.adapters"
DISTRIBUTIONS = {"sglang": ("sglang", "0.5.23"), "flashinfer": ("flashinfer_python", "0.7.2.post1")}
LOCAL = "make_local_attention_virtual_batches"


def _is_of(name: str, package: str) -> bool:
    adapter = f"{ADAPTERS}.{package}"
    return name in (adapter, package) or name.startswith((f"{adapter}.", f"{package}."))


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Put a stand-in on the import path, installed in a version."""
    before = dict(sys.modules)
    version_of.cache_clear()

    def install(package: str, version: str = "", earlier: dict[str, str] | None = None) -> None:
        distribution, release = DISTRIBUTIONS[package]
        info = tmp_path / f"{distribution}.dist-info"
        info.mkdir(exist_ok=True)
        told = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version or release}\n"
        (info / "METADATA").write_text(told, encoding="utf-8")
        (info / "top_level.txt").write_text(f"{package}\n", encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        stand_in = RELEASES / f"{package}-{release}"
        if earlier:
            stand_in = shutil.copytree(stand_in, tmp_path / "earlier")
            for path in stand_in.rglob("*.py"):
                text = path.read_text(encoding="utf-8")
                for new, old in earlier.items():
                    text = text.replace(new, old)
                path.write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(stand_in)
        for name in [name for name in sys.modules if _is_of(name, package)]:
            del sys.modules[name]
        monkeypatch.setattr(importlib.import_module(ADAPTERS), package, None, raising=False)

    yield install
    for name in [name for name in sys.modules if any(_is_of(name, one) for one in DISTRIBUTIONS)]:
        del sys.modules[name]
        if name in before:
            sys.modules[name] = before[name]
    version_of.cache_clear()


@pytest.fixture
def beside(installed, monkeypatch):
    """Import an adapter in a lane, with the stand-in for its package."""

    def adapter(package: str, lane: str = "cpu", version: str = "", earlier=None):
        installed(package, version, earlier)
        monkeypatch.setenv("TRITON_INTERPRET", "1" if lane == "interpreter" else "0")
        return importlib.import_module(f"{ADAPTERS}.{package}")

    return adapter


@pytest.mark.parametrize("lane", ["cpu", "interpreter"])
@pytest.mark.parametrize("package", DISTRIBUTIONS)
def test_every_operation_is_offered_or_has_a_reason(beside, package, lane):
    adapter = beside(package, lane)
    assert DISTRIBUTIONS[package][1] == adapter.VERSION
    for operation in ALL.values():
        if operation.inputs.machine is None or operation.name in adapter.NOT_OFFERED:
            offered = offered_by(adapter, operation) is not None
            assert offered != bool(adapter.NOT_OFFERED.get(operation.name)), operation.name
    assert not [reason for reason in adapter.NOT_OFFERED.values() if "\n" in reason]


@pytest.mark.parametrize(
    ("package", "lane", "name", "reason"),
    [
        ("sglang", "cpu", "create_flashinfer_kv_indices", "with --device interpreter"),
        ("sglang", "interpreter", "get_dcp_lens", "in torch only"),
        ("sglang", "cpu", "get_batch_indices_positions", "candidate flashinfer"),
        ("sglang", "cpu", "batch_sequence", "keep nothing between steps"),
        ("sglang", "cpu", "swap_blocks", "SGLang has no such function"),
        ("flashinfer", "cpu", "get_batch_indices_positions", "with --device interpreter"),
        ("flashinfer", "interpreter", "get_last_loc", "FlashInfer has no such function"),
    ],
)
def test_reasons_name_what_is_missing(beside, package, lane, name, reason):
    adapter = beside(package, lane)
    assert not hasattr(adapter, name)
    assert reason in adapter.NOT_OFFERED[name]


def test_functions_of_torch_get_our_arguments(beside):
    adapter = beside("sglang")
    lens, pages = torch.tensor([2]), torch.tensor([3])
    out = torch.zeros(2, dtype=torch.int64)
    adapter.alloc_extend(lens * 0, lens, lens, pages, out, 4)
    assert out.tolist() == [12, 13]
    adapter.alloc_decode(torch.tensor([5, 4]), lens, pages, out, 4)
    assert out.tolist() == [1, 1], "the number of new pages"
    assert adapter.compute_position(lens * 0, lens, 2)[0].tolist() == [0, 1]


def test_the_pool_is_written_in_torch(beside):
    adapter = beside("sglang")
    table, one = torch.zeros(2, 3, dtype=torch.int32), torch.tensor([1])
    slots = torch.tensor([8, 9])
    prefix = torch.tensor([5])
    adapter.write_req_to_token_pool(table, one, [prefix], one, one * 3, one * 2, slots)
    assert table.tolist() == [[0, 0, 0], [5, 8, 9]]


def test_the_pool_is_written_in_torch_wherever_the_backend_is_named(beside):
    places = {
        "import attention_backends": "import get_server_args",
        "attention_backends()[0]": "get_server_args().attention_backend",
    }
    adapter = beside("sglang", earlier=places)
    table, one = torch.zeros(2, 3, dtype=torch.int32), torch.tensor([1])
    adapter.write_req_to_token_pool(table, one, [one], one, one * 2, one, torch.tensor([8]))
    assert table.tolist() == [[0, 0, 0], [1, 8, 0]]


def test_shares_without_an_interleave_are_not_offered(beside):
    adapter = beside("sglang", earlier={", interleave_size=1": ""})
    assert "takes no interleave_size" in adapter.NOT_OFFERED["get_dcp_lens"]


def test_a_kernel_of_tokens_refuses_pages(beside):
    adapter = beside("sglang", "interpreter", earlier={', "ENTRY_PAGE_SIZE"': ""})
    one = torch.tensor([1])
    with pytest.raises(TypeError, match="takes no ENTRY_PAGE_SIZE: its entries are tokens"):
        adapter.create_flashinfer_kv_indices(one[:, None], *[one] * 3, None, one, entry_page_size=2)


def test_kernels_get_packed_tensors_and_write_ours(beside):
    adapter = beside("sglang", "interpreter")
    lens = torch.tensor([3, 0, 3])[::2]
    out = torch.full((6,), 9)[::2]
    assert adapter.alloc_extend(lens * 0, lens, lens, lens, out, 4) is None
    assert out.tolist() == [0, 1, 2]
    table = torch.zeros(2, 5, dtype=torch.int32)[:, :2]
    args = (table, lens, lens, lens, None, out)
    assert adapter.create_flashinfer_kv_indices(*args, entry_page_size=2) is None
    assert out.tolist() == [10, 10, 10], "the stride of the table's rows"
    adapter.write_req_to_token_pool(table, lens, [lens, lens], lens, lens, lens, lens)
    assert table.tolist() == [[7, 7], [7, 7]]
    assert adapter.get_last_loc(table, lens, lens).tolist() == [3, 3]


def test_results_of_local_attention_become_a_batch(beside, batch):
    made = getattr(beside("sglang"), LOCAL)(4, batch, 4)
    assert made.query_start_loc.tolist() == batch.query_start_loc.tolist()
    assert made.num_computed_tokens_cpu.tolist() == batch.num_computed_tokens_cpu.tolist()
    assert (made.num_reqs, made.max_query_len) == (3, 4)
    assert type(made.max_query_len) is int


def test_flashinfers_function_finds_its_kernel(beside):
    adapter = beside("flashinfer", "interpreter")
    offsets = torch.tensor([0, 9, 2])[::2]
    given, nnz = adapter.get_batch_indices_positions(offsets, offsets, 2)
    assert (given.tolist(), nnz) == ([0, 2], 2)


@pytest.mark.parametrize("package", DISTRIBUTIONS)
def test_untried_release_offers_what_it_has(beside, package):
    tried = beside(package, "interpreter")
    offered = {one.name for one in ALL.values() if hasattr(tried, one.name)}
    [candidate] = resolve([package], "auto")
    assert untried_notes([candidate]) == []
    assert offered
    untried = beside(package, "interpreter", "9.9")
    assert {one.name for one in ALL.values() if hasattr(untried, one.name)} == offered
    [note] = untried_notes([candidate])
    assert " 9.9 was not tried: what it offers is judged" in note
    assert f"known deviations of {TRIED[package][-1]}; docs/sglang.md" in note


def test_function_that_a_release_has_not_is_not_offered(beside, monkeypatch):
    beside("sglang")
    parts = {name: sys.modules[f"{ADAPTERS}.sglang.{name}"] for name in ("catalogue", "twins")}
    elsewhere = partial(parts["twins"].function_of, ("sglang.elsewhere",), "get_dcp_lens")
    monkeypatch.setitem(parts["twins"].OPERATIONS, "get_dcp_lens", elsewhere)
    found, reasons = parts["catalogue"].offered(interpreted=False)
    assert "get_dcp_lens" not in found
    assert reasons["get_dcp_lens"] == "the SGLang that is installed has no get_dcp_lens"


def test_a_module_that_the_wheel_lacks_is_one_line(installed, monkeypatch):
    installed("sglang")
    single = importlib.import_module(f"{ADAPTERS}.single_engines")
    with pytest.raises(single.UnsupportedEngineError, match=r"sglang\.absent cannot be") as error:
        single.module_of("SGLang", "sglang.absent")
    assert "\n" not in str(error.value)


def test_kernels_are_given_well_formed_cases_only(installed):
    installed("sglang")
    installed("flashinfer")
    by_lane = {lane: resolve(["sglang"], lane)[0] for lane in ("auto", "cpu", "interpreter")}
    assert {lane: c.checked for lane, c in by_lane.items()} == {
        "auto": True,
        "cpu": True,
        "interpreter": False,
    }
    [flashinfer] = resolve(["flashinfer"], "auto")
    assert (flashinfer.lane, flashinfer.checked) == ("interpreter", False)
    chosen = with_interface([by_lane["cpu"], flashinfer], "")
    assert {candidate.interface for candidate in chosen} == {"sglang-0.5"}
    assert [version_of(c) for c in chosen] == ["0.5.23", "0.7.2.post1"]
