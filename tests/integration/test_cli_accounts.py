"""`laneway init`, `keys`, `tenants`, `projects` and `audit`: who may ask, and who decided so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gateway.config import load_settings
from gateway.directory import Directory
from gateway.store import Store
from gateway.tenants import AuthOptions, KeyRing, VirtualKey
from tests.integration.commands import Commands, ids, one_line, run


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    """With a config that names a store which is not there yet."""
    config = tmp_path / "laneway.toml"
    config.write_text('[store]\nurl = "sqlite:///laneway.db"\n')
    return Commands(config)


def create_key(commands: Commands, *more: object) -> dict[str, Any]:
    """A key of tenant acme, as JSON tells it."""
    made: dict[str, Any] = commands.json("keys", "create", "--tenant", "acme", "--name", "ci", *more)
    return made


def find(config: Path, secret: str) -> VirtualKey | None:
    """Whom a server that is started now takes the secret for."""
    store = Store.open(load_settings(config).store)
    directory = Directory(store)
    directory.start()
    try:
        return KeyRing(AuthOptions(), directory=directory).find(secret.encode())
    finally:
        directory.stop()
        store.close()


class TestInit:
    def test_it_makes_a_config_a_pepper_for_its_owner_alone_and_an_admin_key(self, tmp_path: Path) -> None:
        folder = tmp_path / "new" / "place"

        made = run("laneway", "init", "--dir", folder, "--json").document

        assert sorted(path.name for path in folder.iterdir()) == ["laneway.db", "laneway.toml", "pepper"]
        assert (folder / "pepper").stat().st_mode & 0o777 == 0o600
        assert made["config"] == str(folder / "laneway.toml")
        assert made["store"] == f"sqlite:///{folder}/laneway.db"
        admin = find(folder / "laneway.toml", made["key"])
        assert admin is not None
        assert (admin.id, admin.tenant, admin.name, admin.role) == (made["id"], "default", "admin", "admin")

    def test_it_says_what_to_do_next_beside_the_result(self, tmp_path: Path) -> None:
        done = run("laneway", "init", "--dir", tmp_path / "a b")

        assert re.search(r"^Admin key  lw-\w{38}$", done.out, re.MULTILINE)
        assert f"laneway serve --config '{tmp_path}/a b/laneway.toml'" in done.err

    @pytest.mark.parametrize("name", ["laneway.toml", "pepper", "laneway.db"])
    def test_it_overwrites_nothing(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_text("precious")

        done = run("laneway", "init", "--dir", tmp_path)

        assert done.code == 1
        assert one_line(done.err)
        assert f"{tmp_path / name} is there already" in done.err
        assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "precious")]

    def test_what_fails_leaves_nothing_behind(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LANEWAY_STORE__URL", "sqlite:////no/such/folder/laneway.db")

        done = run("laneway", "init", "--dir", tmp_path)

        assert done.code == 2
        assert list(tmp_path.iterdir()) == []

    def test_everything_in_the_config_that_is_commented_out_is_a_default(self, tmp_path: Path) -> None:
        run("laneway", "init", "--dir", tmp_path)
        config = tmp_path / "laneway.toml"
        before = load_settings(config)

        config.write_text(re.sub(r"^# (?=[a-z_]+ = |\[)", "", config.read_text(), flags=re.MULTILINE))

        assert load_settings(config) == before
        assert "[backends.local]" in config.read_text().splitlines()


class TestKeys:
    def test_a_new_key_is_told_with_whose_it_is_and_works(self, commands: Commands) -> None:
        made = create_key(commands, "--project", "web", "--lanes", "standard,batch", "--default-lane", "batch")

        assert {name: made[name] for name in ("tenant", "project", "name")} == {
            "tenant": "acme",
            "project": "web",
            "name": "ci",
        }
        key = find(commands.config, made["key"])
        assert key is not None
        assert (key.id, key.tenant, key.project) == (made["id"], "acme", "web")
        assert (key.lanes, key.default_lane, key.role) == (("standard", "batch"), "batch", "user")

    def test_a_secret_is_seen_once_and_never_stored(self, commands: Commands) -> None:
        made = create_key(commands)

        listed = commands.run("keys", "list", "--all", "--json").out + commands.run("audit", "--json").out

        assert made["key"] not in listed
        assert made["hint"] in listed
        assert made["key"].encode() not in (commands.config.parent / "laneway.db").read_bytes()

    def test_people_get_the_key_on_standard_output_and_the_advice_beside_it(self, commands: Commands) -> None:
        done = commands.run("keys", "create", "--tenant", "acme", "--name", "ci", "--models", "gpt-*,m")

        assert re.match(r"Key +lw-\w{38}\n", done.out)
        assert re.search(r"^Models +gpt-\*, m$", done.out, re.MULTILINE)
        assert done.err == "Keep the key now: it is never shown again.\n"

    def test_a_key_comes_with_its_limits(self, commands: Commands) -> None:
        made = create_key(commands, "--rpm", 10, "--tpm", 1000, "--concurrency", 3, "--budget", "12.000000001")

        rows = commands.json("limits", "show", "--key", made["id"])

        assert {(row["meter"], row["amount"], row["period"], row["used"]) for row in rows} == {
            ("rpm", 10, None, None),
            ("tpm", 1000, None, None),
            ("concurrency", 3, None, None),
            ("usd", 12_000_000_001, "month", 0),
        }

    def test_keys_are_listed_by_tenant_and_project_and_the_ended_ones_on_request(self, commands: Commands) -> None:
        first = create_key(commands)["id"]
        web = create_key(commands, "--project", "web")["id"]
        other = commands.json("keys", "create", "--tenant", "beta", "--name", "ci")["id"]
        revoked = commands.json("keys", "revoke", web)

        assert (revoked["id"], revoked["state"]) == (web, "revoked")
        assert sorted(ids(commands.json("keys", "list"))) == sorted([first, other])
        assert ids(commands.json("keys", "list", "--tenant", "beta")) == [other]
        assert ids(commands.json("keys", "list", "--tenant", "acme", "--project", "web", "--all")) == [web]

    def test_a_rotated_key_goes_on_for_the_overlap(self, commands: Commands) -> None:
        old = create_key(commands)

        new = commands.json("keys", "rotate", old["id"], "--overlap", "2h")

        assert new["replaces"] == old["id"]
        assert find(commands.config, new["key"]) is not None
        before = find(commands.config, old["key"])
        assert before is not None
        assert before.expires_at is not None
        assert 7190 <= before.expires_at - new["created_at"] <= 7200

    def test_who_revokes_a_key_learns_that_it_was_rotated_into_one_that_lives(self, commands: Commands) -> None:
        first = create_key(commands)["id"]
        second = commands.json("keys", "rotate", first)["id"]
        third = commands.json("keys", "rotate", second)["id"]
        commands.json("keys", "revoke", second)

        told = commands.run("keys", "revoke", first)
        last = commands.run("keys", "revoke", third)
        nothing_left = commands.run("keys", "revoke", first)

        assert (told.code, one_line(told.err), f"its successor {third} lives on" in told.err) == (0, True, True)
        assert second not in told.err
        assert (last.err, nothing_left.err) == ("", "")

    @pytest.mark.parametrize("columns", [40, 80, 120])
    def test_ids_and_instants_are_whole_however_narrow_the_terminal_is(self, commands: Commands, columns: int) -> None:
        made = [create_key(commands, "--expires", "2999-01-01")["id"] for _ in range(2)]

        shown = commands.run("keys", "list", terminal=True, columns=columns).out

        assert [shown.count(each) for each in (*made, "2999-01-01 00:00")] == [1, 1, 2]
        lines = shown.splitlines()
        assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip()) for line in lines) <= columns
        assert ("" in lines) == (columns < 120)  # between the facts of the one and of the other

    def test_an_expiry_is_a_span_or_a_date(self, commands: Commands) -> None:
        by_span = create_key(commands, "--expires", "90d")
        by_date = create_key(commands, "--expires", "2999-01-01")

        assert 0 <= by_span["expires_at"] - by_span["created_at"] - 90 * 86_400 <= 2
        assert by_date["expires_at"] == 32_472_144_000

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("--budget", "0.0000000001"), "--budget"),
            (("--budget", "0"), "more than $0"),
            (("--budget", "9007199.26"), "more than $9,007,199.25"),
            (("--budget-period", "day"), "--budget"),
            (("--expires", "soon"), "--expires"),
            (("--expires", "2001-01-01"), "is over"),
            (("--rpm", "0"), "--rpm"),
            (("--role", "king"), "--role"),
            (("--lanes", ","), "--lanes"),
        ],
    )
    def test_a_value_that_cannot_be_read_is_a_wrong_use(
        self, commands: Commands, words: tuple[str, ...], said: str
    ) -> None:
        done = commands.run("keys", "create", "--tenant", "acme", "--name", "ci", *words)

        assert (done.code, done.out) == (2, "")
        assert said in done.err
        assert not re.search("budget_nano|Unix|9007199254740991", done.err)
        assert commands.json("keys", "list", "--all") == []

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("keys", "create", "--tenant", "a/b", "--name", "ci"), "tenant"),
            (("keys", "create", "--tenant", "a", "--name", "ci", "--lanes", "fast"), "lanes"),
            (("keys", "rotate", "key_unknown"), "key_unknown"),
            (("keys", "revoke", "key_unknown"), "key_unknown"),
        ],
    )
    def test_what_the_store_refuses_is_one_clear_line(
        self, commands: Commands, words: tuple[str, ...], said: str
    ) -> None:
        done = commands.run(*words, "--json")

        assert (done.code, done.out) == (1, "")
        assert one_line(done.err)
        assert done.err.startswith("error: ")
        assert said in done.err


class TestTenants:
    def test_a_tenant_is_made_changed_and_ended(self, commands: Commands) -> None:
        commands.json("tenants", "create", "acme", "--weight", 2, "--time-zone", "Europe/Berlin", "--models", "m,n")
        commands.json("tenants", "set", "acme", "--weight", 3, "--any-model", "--lanes", "batch")

        (row,) = commands.json("tenants", "list")
        assert (row["weight"], row["time_zone"], row["models"], row["lanes"]) == (3, "Europe/Berlin", None, ["batch"])

        key = create_key(commands)
        commands.json("tenants", "end", "acme")

        assert commands.json("tenants", "list") == []
        assert [row["name"] for row in commands.json("tenants", "list", "--all")] == ["acme"]
        assert find(commands.config, key["key"]) is None

    def test_what_is_not_said_of_a_tenant_stays(self, commands: Commands) -> None:
        commands.json("tenants", "create", "acme", "--models", "m", "--lanes", "batch")

        row = commands.json("tenants", "set", "acme", "--weight", 5)

        assert (row["models"], row["lanes"], row["time_zone"]) == (["m"], ["batch"], "UTC")

    def test_some_models_and_any_model_contradict_each_other(self, commands: Commands) -> None:
        done = commands.run("tenants", "set", "acme", "--models", "m", "--any-model")

        assert done.code == 2
        assert "--any-model" in done.err

    def test_projects_are_of_a_tenant(self, commands: Commands) -> None:
        commands.json("tenants", "create", "acme")
        commands.json("projects", "create", "web", "--tenant", "acme", "--models", "m")
        commands.json("projects", "create", "old", "--tenant", "acme")
        commands.json("projects", "end", "old", "--tenant", "acme")
        create_key(commands, "--project", "other")

        listed = commands.json("projects", "list", "--tenant", "acme")

        assert [(row["name"], row["models"]) for row in listed] == [("other", None), ("web", ["m"])]
        assert len(commands.json("projects", "list", "--all")) == 3
        assert "Models  Lanes" in commands.run("projects", "list").out

    def test_a_project_of_nobody_is_refused(self, commands: Commands) -> None:
        done = commands.run("projects", "create", "web", "--tenant", "nobody")

        assert (done.code, one_line(done.err)) == (1, True)
        assert "nobody" in done.err


class TestAudit:
    def test_every_change_is_told_with_who_made_it(self, commands: Commands) -> None:
        key = create_key(commands)["id"]
        commands.json("keys", "revoke", key)

        newest = commands.json("audit", "--limit", 1)
        rest = commands.json("audit", "--before", newest[0]["id"])

        assert [(row["action"], row["target"]) for row in newest] == [("key.revoke", key)]
        assert [row["action"] for row in rest] == ["key.create", "project.create", "tenant.create"]
        assert {bool(re.fullmatch(r"cli:.+", row["actor"])) for row in newest + rest} == {True}

    def test_a_number_that_no_change_can_have_is_a_wrong_use(self, commands: Commands) -> None:
        done = commands.run("audit", "--before", 99999999999999999999)

        assert (done.code, done.out) == (2, "")
        assert "--before" in done.err

    def test_no_variable_of_the_environment_changes_who_it_was(
        self, commands: Commands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
            monkeypatch.setenv(name, "somebody-else")

        create_key(commands)

        assert "somebody-else" not in commands.run("audit").out


@pytest.mark.parametrize(
    "words",
    [
        ("keys", "list"),
        ("tenants", "list"),
        ("projects", "list"),
        ("limits", "show"),
        ("prices", "list"),
        ("audit",),
        ("usage", "--by", "tenant,model", "--since", "7d"),
        ("ledger", "recover"),
    ],
    ids=" ".join,
)
def test_every_list_makes_the_store_it_is_given_and_is_an_empty_document(
    commands: Commands, words: tuple[str, ...]
) -> None:
    assert commands.json(*words) == []
    assert (commands.config.parent / "laneway.db").exists()


@pytest.mark.parametrize(
    "words", [("usage", "--tenant", "\udcff"), ("explain", "\udcff"), ("keys", "revoke", "\udcff")], ids=ascii
)
def test_an_argument_that_is_no_text_is_told_in_one_line(commands: Commands, words: tuple[str, ...]) -> None:
    done = commands.run(*words)

    assert (done.code, done.out, one_line(done.err)) == (1, "", True)
    assert "not text in UTF-8" in done.err


def test_a_config_that_cannot_be_is_told_in_one_line(commands: Commands) -> None:
    commands.config.write_text("[store]\nurl = 5\n")

    done = commands.run("keys", "list")

    assert (done.code, one_line(done.err)) == (2, True)
    assert "store.url" in done.err
