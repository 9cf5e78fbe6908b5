"""The admin API under /admin/v1: for operators, over the same accounts, limits and ledger as the commands."""

from gateway.api.admin.deps import AdminDeps
from gateway.api.admin.routes import admin_routes

__all__ = ("AdminDeps", "admin_routes")
