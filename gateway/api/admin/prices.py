"""Prices: what a million tokens of each model cost, from now on."""

from __future__ import annotations

from gateway.api.admin.deps import AdminDeps
from gateway.api.admin.endpoint import Call, Endpoint
from gateway.api.admin.paging import Page, page
from gateway.api.admin.shapes import PageQuery, PriceOrder
from gateway.rules import Price

LIST = Endpoint(
    method="GET",
    path="/prices",
    name="listPrices",
    summary="The prices that hold, in nano-dollars a million tokens.",
    query=PageQuery,
    answer=Page[Price],
)
SET = Endpoint(
    method="PUT",
    path="/prices",
    name="setPrice",
    summary="Price a model from now on. What was used before keeps the price that it had.",
    body=PriceOrder,
    answer=Price,
)


class Prices:
    """The handlers."""

    def __init__(self, deps: AdminDeps) -> None:
        self._deps = deps
        self.acts = ((LIST, self.list_prices), (SET, self.set_price))

    def list_prices(self, call: Call[PageQuery, None]) -> Page[Price]:
        """The newest version of each model."""
        return page(self._deps.accounts(call.caller).prices(), lambda price: price.model, call.query)

    def set_price(self, call: Call[None, PriceOrder]) -> Price:
        """A new version."""
        order = call.body
        return self._deps.accounts(call.caller).set_price(
            order.model, order.prompt_nano, order.completion_nano, order.cached_nano
        )
