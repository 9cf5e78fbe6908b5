"""What a configuration needs to start: here, that a server which others reach has keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.errors import ConfigError
from gateway.accounts import Accounts, NewKey
from gateway.config import Settings, load_settings
from gateway.processes import check_alone, check_store
from gateway.store import Store


def settings(tmp_path: Path, toml: str = "", **environ: str) -> Settings:
    file = tmp_path / "laneway.toml"
    file.write_text(toml, encoding="utf-8")
    return load_settings(file, environ=environ)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "gateway.example"])
def test_an_open_server_refuses_to_listen_beyond_this_machine(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_store(settings(tmp_path, LANEWAY_SERVER__HOST=host))

    assert host in str(caught.value)
    assert "LANEWAY_AUTH__KEYS" in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_key(tmp_path: Path, host: str) -> None:
    assert not check_store(settings(tmp_path, LANEWAY_SERVER__HOST=host))


@pytest.mark.parametrize("toml", ["[auth]\nkeys = ['12345678']", "[[auth.key]]\nkey = '12345678'"])
def test_with_a_key_of_the_config_it_listens_anywhere(tmp_path: Path, toml: str) -> None:
    assert check_store(settings(tmp_path, toml, LANEWAY_SERVER__HOST="0.0.0.0"))


def test_with_a_key_of_the_store_it_listens_anywhere_even_when_that_is_revoked(tmp_path: Path) -> None:
    found = settings(tmp_path, LANEWAY_SERVER__HOST="0.0.0.0")
    store = Store.open(found.store)
    accounts = Accounts(store, "test")
    made = accounts.create_key(NewKey(tenant="acme"))
    accounts.revoke_key(made.row.id)
    store.close()

    assert check_store(found)


def test_a_store_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    found = settings(tmp_path, '[store]\nurl = "sqlite:///no/such/folder/laneway.db"')

    with pytest.raises(ConfigError, match=r"store\.url"):
        check_store(found)


def test_a_store_takes_one_server(tmp_path: Path) -> None:
    found = settings(tmp_path)
    store = Store.open(found.store)

    check_alone(found)
    with store.hold("run", tmp_path / "control.sock"), pytest.raises(ConfigError, match=r"in use by another server"):
        check_alone(found)
    check_alone(found)
    store.close()
