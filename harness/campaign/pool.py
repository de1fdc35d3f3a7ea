"""Workers that carry out orders: an interface, so that the driver does not know of Ray."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from attnproof.harness.campaign.records import Answer, Cost, Order


class Ended(NamedTuple):
    """The end of an order."""

    order: Order
    answer: Answer | None
    """None if no worker could carry it out."""
    problem: str = ""
    """Why there is no answer."""
    cost: Cost = Cost()


class Pool(Protocol):
    """Workers that carry out orders."""

    def size(self) -> int:
        """Return the number of orders that can be carried out at a time now."""
        ...

    def submit(self, order: Order) -> None:
        """Hand an order to the workers."""
        ...

    def wait(self, seconds: float) -> list[Ended]:
        """Return the orders that have ended, after at most so many seconds."""
        ...

    def cancel(self) -> None:
        """End all orders that are being carried out, without an answer."""
        ...

    def close(self) -> None:
        """Let go of the workers."""
        ...
