"""What operators decide: tenants, projects, keys, limits, prices, and the record of who changed them."""

from __future__ import annotations

from gateway.accounts.keys import MadeKey, NewKey
from gateway.accounts.operator import Accounts

__all__ = ("Accounts", "MadeKey", "NewKey")
