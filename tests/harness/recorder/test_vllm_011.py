"""Hooks of vLLM 0.11, whose model runner calls the builders itself."""

from __future__ import annotations

from attnproof.harness.cases.recorded.reading import recorded_steps, recording_files


def test_builds_of_the_runner_are_recorded_and_those_of_base_classes_are_not(
    engine, record, monkeypatch
):
    engine()
    from vllm.v1.worker import utils

    for name in ("build_metadata", "build_metadata_for_drafting"):
        monkeypatch.delattr(utils.AttentionGroup, name)
    monkeypatch.delattr(utils.AttentionGroup, "build_metadata_for_cudagraph_capture")

    class Derived(utils.Builder):
        def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
            return super().build(common_prefix_len, common_attn_metadata)

        def build_for_cudagraph_capture(self, common_attn_metadata):
            return self.build(0, common_attn_metadata)

    def prepare(runner, _):
        group = runner.groups[0]
        group.metadata_builders[:] = [Derived(group.kv_cache_spec)]

        def run(scheduler_output):
            [metadata] = runner.metadata(list(scheduler_output.num_scheduled_tokens.values()))
            builder = group.get_metadata_builder()
            builder.build_for_cudagraph_capture(metadata)
            builder.build(common_prefix_len=0, common_attn_metadata=metadata)

        runner.run = run

    folder = record(4, prepare=prepare).folder
    [path] = recording_files(folder)
    steps = list(recorded_steps(path, []))
    assert [(len(step.builds), len(step.calls)) for step in steps] == [(1, 1)] * 4
    assert steps[0].builds[0].builder == "Derived"
