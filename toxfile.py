"""A tox plugin: environments whose `runner` is `shared` may have the same `env_dir`.

Plain tox recreates a folder when an environment of another name comes along. Torch is
too large for that: the environments that need it have one installation between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tox.plugin import impl
from tox.tox_env.info import Info
from tox.tox_env.python.virtual_env.runner import VirtualEnvRunner
from tox.tox_env.register import ToxEnvRegister


class _NamelessInfo(Info):
    """What tox remembers of a folder, without the name of the environment that made it."""

    @contextmanager
    def compare(
        self, value: Any, section: str, sub_section: str | None = None
    ) -> Iterator[tuple[bool, Any]]:
        """As in tox; the environment's name is not compared."""
        if section == "ToxEnv":
            value = {key: item for key, item in value.items() if key != "name"}
        with super().compare(value, section, sub_section) as result:
            yield result


class _SharedRunner(VirtualEnvRunner):
    @staticmethod
    def id() -> str:
        """The name that tox.ini gives as `runner`."""
        return "shared"

    @property
    def cache(self) -> Info:
        """What tox remembers of the folder."""
        return _NamelessInfo(self.env_dir)


@impl
def tox_register_tox_env(register: ToxEnvRegister) -> None:
    """Make the runner known to tox."""
    register.add_run_env(_SharedRunner)
