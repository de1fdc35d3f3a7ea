"""The stub of vLLM: plugins are imported and judged where vLLM is not installed."""

from __future__ import annotations

import re
import shlex
import sys
from abc import ABC
from importlib import import_module

import pytest
import torch

from attnproof import reference
from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.interfaces import vllm_batch
from attnproof.harness.interfaces.functions import V32
from attnproof.harness.model.case import Case
from attnproof.harness.operations import ALL
from attnproof.harness.running import engine_stub
from attnproof.harness.running.candidates import resolve
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.loading import offered_by

SPLIT = "split_decodes_and_prefills"
QUICK = ("--ops", SPLIT, "--depth=quick", "--no-vary", "--steps=0", "--no-remember", "--out=o")
PLUGIN = """
import vllm.envs as envs
from vllm import _custom_ops as ops
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.triton_utils import tl, triton
from vllm.utils.math_utils import cdiv
from vllm.v1.attention.backend import AttentionBackend, AttentionMetadataBuilder
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.attention.backends.utils import split_decodes_and_prefills as split_of_vllm
from vllm.v1.kv_cache_interface import AttentionSpec

init_logger(__name__).info_once("imported", scope="local")
assert current_platform.is_cpu() and not current_platform.is_cuda()
assert envs.VLLM_USE_V1 is None and cdiv(7, 2) == 4

@register_backend(AttentionBackendEnum.CUSTOM)
class Backend(AttentionBackend):
    pass

class Builder(AttentionMetadataBuilder[VllmConfig]):
    def __init__(self, kv_cache_spec: AttentionSpec):
        self.spec = kv_cache_spec

def split_decodes_and_prefills(
    common_attn_metadata: CommonAttentionMetadata, decode_threshold=1, require_uniform=False,
    treat_short_extends_as_decodes=True,
):
    options = require_uniform, treat_short_extends_as_decodes
    return split_of_vllm(common_attn_metadata, decode_threshold, *options)
"""


@pytest.fixture
def stub():
    """Let this process find the stub, until the test ends."""
    engine_stub.install_stub("")
    yield
    engine_stub._supplied.clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]
    sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, engine_stub._Finder)]


@pytest.fixture
def verify(attnproof, tmp_path):
    def run(source: str, *options: str):
        (tmp_path / "plugin.py").write_text(source)
        return attnproof("verify", *QUICK, "--candidate=plugin.py", *options, cwd=tmp_path)

    return run


def test_a_plugin_is_judged_by_its_own_functions(verify, attnproof, tmp_path):
    done = verify(PLUGIN, "--stub=vllm")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "interface vllm-0.32 for plugin" in done.stdout
    wrong = verify(PLUGIN.replace("metadata, decode_threshold, *", "metadata, 1, *"), "--stub=vllm")
    (command,) = re.findall("attnproof (replay .*)", wrong.stdout)
    assert (wrong.returncode, command[-12:]) == (1, " --stub vllm")
    assert attnproof(*shlex.split(command), cwd=tmp_path).returncode == 1


def test_a_name_of_the_stub_is_not_the_candidates(verify):
    done = verify(f"from vllm.v1.attention.backends.utils import {SPLIT}", "--stub=vllm")
    assert done.returncode == 2
    assert "offers none of the operations" in done.stderr


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("import vllm", (), "No module named 'vllm': install vLLM, or add --stub vllm"),
        ("", ("--stub=sglang",), "--stub is 'sglang': expected vllm"),
        (
            "from vllm.utils import cdivv",
            ("--stub=vllm",),
            "no name cdivv in vllm.utils: did you mean vllm.utils.cdiv?",
        ),
        (
            "from vllm.utils import largest_power_of_2_divisor",
            ("--stub=vllm",),
            "did you mean vllm.utils.math_utils.largest_power_of_2_divisor?",
        ),
        (
            "import vllm.v1.attention.backendz",
            ("--stub=vllm",),
            "no module vllm.v1.attention.backendz: did you mean vllm.v1.attention.backend?",
        ),
        (
            "from vllm.config import VllmConfig\nVllmConfig().model_config",
            ("--stub=vllm",),
            "the stub of vllm has vllm.config.VllmConfig only as a placeholder, which has no "
            "attribute model_config: install vLLM",
        ),
    ],
)
def test_what_is_lacking_is_one_line_and_nothing_runs(verify, source, options, message):
    done = verify(source, *options)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message in done.stderr


def test_an_installed_vllm_is_used_by_a_table_and_refuses_the_option(tmp_path, monkeypatch):
    (tmp_path / "plugin.toml").write_text('module = "plugin"\nstub = "vllm"\n')
    table = [str(tmp_path / "plugin.toml")]
    assert resolve(table, "auto")[0].stub == "vllm"
    assert [c.stub for c in resolve(["optimized", *table], "auto", "vllm")] == ["", "vllm"]
    (tmp_path / "plugin.toml").write_text('module = "plugin"\nstub = "vlm"\n')
    with pytest.raises(UsageError, match=r"stub is 'vlm': did you mean vllm\? expected vllm"):
        resolve(table, "auto")
    (tmp_path / "plugin.toml").write_text('module = "plugin"\nstub = "vllm"\n')
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve(table, "auto")[0].stub == ""
    with pytest.raises(UsageError, match="vLLM is installed: leave out --stub"):
        resolve(table, "auto", "vllm")


def test_every_listed_name_has_a_value(stub):
    for module, names in engine_stub._modules().items():
        for name in names:
            assert getattr(import_module(module), name) is not None, f"{module}.{name}"
    assert not hasattr(import_module("vllm.utils"), "nothing")


def test_placeholders_are_bases_and_decorators_and_nothing_else(stub):
    config = import_module("vllm.config")
    backend = import_module("vllm.v1.attention.backends.mla.common")

    class Impl(backend.MLACommonImpl[config.VllmConfig], ABC):
        pass

    class Layer(backend.MLACommonImpl, torch.nn.Module):
        pass

    assert Impl(3, device="cpu")
    assert import_module("vllm.compilation.decorators").support_torch_compile(Impl) is Impl
    layer = Layer.__new__(Layer)
    torch.nn.Module.__init__(layer)
    layer.register_buffer("rows", torch.zeros(1))
    assert layer.rows.numel() == 1
    mode = config.CUDAGraphMode
    for use in (lambda: bool(mode), lambda: bool(mode()), mode.FULL, lambda: Impl.rows):
        with pytest.raises((TypeError, AttributeError), match="only as a placeholder"):
            use()


def test_functions_of_the_reference_take_the_batches_of_both_generations(stub):
    case = Case(SPLIT, make_batch([1, 1, 5], [3, 4, 0], 4), {"decode_threshold": 1})
    batch = ALL[SPLIT].call.prepare(case, 0, "cpu").args["common_attn_metadata"]
    split = getattr(import_module("vllm.v1.attention.backends.utils"), SPLIT)
    assert V32.metadata_class is vllm_batch.CommonAttentionMetadata
    assert split(V32.theirs(batch)) == split(batch) == reference.split_decodes_and_prefills(batch)


def test_the_earlier_module_has_the_batch_of_the_interface():
    early = "vllm.v1.attention.backends.utils"
    assert engine_stub._batch_class(early, "") is reference.CommonAttentionMetadata
    assert engine_stub._batch_class(early, "vllm-0.32") is vllm_batch.CommonAttentionMetadata


def test_the_reference_offers_what_the_stub_has_returned(stub):
    assert import_module("vllm.v1.attention.backend").AttentionMetadataBuilder
    assert offered_by(reference, ALL["AttentionMetadataBuilder"]) is not None
