"""Configuration: where values come from, which wins, and what an error says."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from backends.errors import ConfigError
from gateway.config import BUILT_IN_MODEL, Settings, load_settings, tiktoken_cache_dir
from gateway.lanes import DEFAULT_LANES


def load(tmp_path: Path, toml: str = "", *, model: str | None = None, **environ: str) -> Settings:
    """Settings of a file and an environment, without the command line."""
    file = tmp_path / "laneway.toml"
    file.write_text(toml, encoding="utf-8")
    return load_settings(file, model=model, environ=environ)


def refusal(tmp_path: Path, toml: str = "", **environ: str) -> str:
    """What stops the start."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, toml, **environ)
    return str(caught.value)


def test_without_anything_the_built_in_model_is_served_on_loopback() -> None:
    settings = load_settings(environ={})

    assert settings.backends == {"local": {"type": "hf", "model": BUILT_IN_MODEL}}
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8000)
    assert settings.lanes == DEFAULT_LANES


def test_the_environment_overrides_the_file_and_the_command_line_overrides_both(tmp_path: Path) -> None:
    file = tmp_path / "laneway.toml"
    file.write_text("[server]\nport = 1111\nmax_body_bytes = 4096\n")

    from_environment = load_settings(file, environ={"LANEWAY_SERVER__PORT": "2222"})
    from_flag = load_settings(file, environ={"LANEWAY_SERVER__PORT": "2222"}, server={"port": 3333})

    assert (from_environment.server.port, from_flag.server.port) == (2222, 3333)
    assert from_flag.server.max_body_bytes == 4096


def test_the_environment_can_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "laneway.toml"
    file.write_text("[server]\nport = 1111\n")

    assert load_settings(environ={"LANEWAY_CONFIG": str(file)}).server.port == 1111


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("0.5", 0.5),
        ("true", True),
        ("auto", "auto"),
        ("org/model-7b", "org/model-7b"),
        ('"7"', "7"),
        ("2024-01-31", "2024-01-31"),
        ('["a", "b"]', ["a", "b"]),
        ("1\nother = 2", "1\nother = 2"),
        ("", ""),
    ],
)
def test_text_of_the_environment_is_a_toml_value_or_itself(tmp_path: Path, text: str, value: object) -> None:
    settings = load(tmp_path, LANEWAY_BACKENDS__LOCAL__OPTION=text)

    assert settings.backends["local"]["option"] == value


def test_keys_in_the_environment_are_a_comma_list_of_text(tmp_path: Path) -> None:
    settings = load(tmp_path, LANEWAY_AUTH__KEYS="12345678, sk-second-key")

    assert settings.auth.keys == ("12345678", "sk-second-key")


def test_a_backend_named_with_a_dash_is_reached_from_the_environment(tmp_path: Path) -> None:
    toml = '[backends.my-Gpu]\ntype = "upstream"\n'

    settings = load(tmp_path, toml, LANEWAY_BACKENDS__MY_GPU__URL="http://gpu/v1")

    assert settings.backends == {"my-Gpu": {"type": "upstream", "url": "http://gpu/v1"}}


def test_variables_that_an_orchestrator_injects_are_left_alone(tmp_path: Path) -> None:
    """Kubernetes sets these for a service called laneway."""
    settings = load(tmp_path, LANEWAY_PORT="tcp://10.0.0.1:8000", LANEWAY_SERVICE_HOST="10.0.0.1")

    assert settings.server.port == 8000


def test_a_model_on_the_command_line_joins_the_backends_of_the_config(tmp_path: Path) -> None:
    settings = load(tmp_path, '[backends.test]\ntype = "scripted"\n', model="org/m")

    assert settings.backends == {"test": {"type": "scripted"}, "local": {"type": "hf", "model": "org/m"}}


def test_a_model_on_the_command_line_keeps_the_other_options_of_local(tmp_path: Path) -> None:
    settings = load(tmp_path, '[backends.local]\nmodel = "a"\nmax_num_seqs = 8\n', model="b")

    assert settings.backends == {"local": {"type": "hf", "model": "b", "max_num_seqs": 8}}


def test_a_model_on_the_command_line_replaces_a_local_of_another_kind(tmp_path: Path) -> None:
    settings = load(tmp_path, '[backends.local]\ntype = "scripted"\nmodels = ["m"]\n', model="b")

    assert settings.backends == {"local": {"type": "hf", "model": "b"}}


def test_backends_of_the_config_alone_leave_the_built_in_model_out(tmp_path: Path) -> None:
    settings = load(tmp_path, '[backends.test]\ntype = "scripted"\n')

    assert settings.backends == {"test": {"type": "scripted"}}


def test_one_option_of_the_built_in_engine_keeps_the_built_in_model(tmp_path: Path) -> None:
    settings = load(tmp_path, LANEWAY_BACKENDS__LOCAL__MAX_NUM_SEQS="8")

    assert settings.backends == {"local": {"type": "hf", "model": BUILT_IN_MODEL, "max_num_seqs": 8}}


def test_a_lane_keeps_the_defaults_that_the_config_does_not_change(tmp_path: Path) -> None:
    settings = load(tmp_path, "[lanes.batch]\nmax_queue = 5\n")

    assert settings.lanes["batch"].max_queue == 5
    assert settings.lanes["batch"].priority == DEFAULT_LANES["batch"].priority
    assert settings.lanes["interactive"] == DEFAULT_LANES["interactive"]


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("[server]\nport = 70000", ["server.port", "70000", "65535"]),
        ('[server]\nport = "http"', ["server.port", "http", "whole number"]),
        ("[server]\nmax_body_bytes = 1", ["server.max_body_bytes", "1", "1024"]),
        ("[server]\nprot = 1", ["server.prot", "port"]),
        ('[server]\nroot_path = "llm/"', ["server.root_path", "llm/"]),
        ("[server]\nworkers = 2", ["server.workers", "2", "shared", "planned"]),
        ('[server]\ntls_cert = "/no/such.pem"\ntls_key = "/no/such.pem"', ["server.tls_cert", "/no/such.pem"]),
        ("server = 1", ["server", "table"]),
        ("[lanes.fast]\npriority = 1", ["lanes.fast", "interactive", "standard", "batch"]),
        ("[lanes.batch]\nmax_wait = 0", ["lanes.batch.max_wait", "0", "> 0"]),
        ("[lanes.batch]\nmax_wait = inf", ["lanes.batch.max_wait", "inf", "finite"]),
        ("[backends.local]\nx = [{ y = nan }]", ["backends.local.x[0].y", "nan", "finite"]),
        ("[lanes.batch]\nfloor = 0.99", ["floor", "interactive", "0.99"]),
        ('[[auth.key]]\nkey = "12345678"\nlanes = ["fast"]', ["auth.key[0]", "fast"]),
        ('[[auth.key]]\nkey = "12345678"\nlanes = ["batch"]', ["auth.key[0]", "standard"]),
        ("[[auth.key]]\nkey = '12345678'\nweight = 0", ["auth.key[0].weight", "0"]),
        ("[backends]\ngpu = 1", ["backends.gpu", "table"]),
        ("[bakends.gpu]\ntype = 'hf'", ["bakends", "backends"]),
        ("[server", ["not valid TOML"]),
    ],
)
def test_an_error_names_the_field_its_value_and_what_is_allowed(tmp_path: Path, toml: str, words: list[str]) -> None:
    message = refusal(tmp_path, toml)

    assert [word for word in words if word not in message] == [], message


def test_a_certificate_that_cannot_be_loaded_stops_the_start(tmp_path: Path) -> None:
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("no PEM\n")

    message = refusal(
        tmp_path,
        LANEWAY_SERVER__TLS_CERT=str(tmp_path / "cert.pem"),
        LANEWAY_SERVER__TLS_KEY=str(tmp_path / "key.pem"),
    )

    assert message.startswith(f"server.tls_cert: {tmp_path / 'cert.pem'} and the tls_key")
    assert "PEM" in message


def test_an_unknown_table_in_the_environment_is_refused(tmp_path: Path) -> None:
    assert "LANEWAY_SERVERS__PORT" in refusal(tmp_path, LANEWAY_SERVERS__PORT="1")


def test_a_path_through_a_value_in_the_environment_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, "[server]\nport = 1\n", LANEWAY_SERVER__PORT__X="1")

    assert "server.port is not a table" in message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        load_settings(tmp_path / "nowhere.toml", environ={})


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("sqlite:///laneway.db", "sqlite:///{folder}/laneway.db"),
        ("sqlite:///below/laneway.db", "sqlite:///{folder}/below/laneway.db"),
        ("sqlite:////var/lib/laneway.db", "sqlite:////var/lib/laneway.db"),
        ("postgresql://laneway@db/laneway", "postgresql://laneway@db/laneway"),
    ],
)
def test_files_of_the_store_are_meant_from_the_folder_of_the_config(tmp_path: Path, url: str, found: str) -> None:
    settings = load(tmp_path, f'[store]\nurl = "{url}"\npepper_file = "pepper"\n')

    assert settings.store.url == found.format(folder=tmp_path)
    assert settings.store.pepper_file == str(tmp_path / "pepper")
    assert settings.store.spool == str(tmp_path / "laneway-spool.db")


def test_without_a_config_the_store_is_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert load_settings(environ={}).store.url == f"sqlite:///{tmp_path}/laneway.db"


def test_the_cache_of_vocabularies_is_tiktokens_own_setting() -> None:
    assert tiktoken_cache_dir({"TIKTOKEN_CACHE_DIR": "/cache"}) == Path("/cache")
    assert tiktoken_cache_dir({}) is None


@pytest.mark.parametrize(
    "toml",
    [
        "[auth]\nkeys = ['s3cr3t', 's3cr3t']",
        "[auth]\nkeys = ['s3cr3t-long', 's3cr3t-long']",
        "[auth]\nkeys = 's3cr3t-long'",
        "[auth]\nkeys = [{ s3cr3t = 's3cr3t' }]",
        "[[auth.key]]\nkey = 's3cr3t'",
    ],
)
def test_an_error_never_shows_a_key(tmp_path: Path, toml: str) -> None:
    message = refusal(tmp_path, toml)

    assert "auth.key" in message
    assert "s3cr3t" not in message


def test_settings_survive_the_way_to_the_front(tmp_path: Path) -> None:
    toml = '[server]\ncors_origins = ["https://a"]\n[[auth.key]]\nkey = "12345678"\n[backends.t]\ntype = "scripted"\n'
    settings = load(tmp_path, toml)

    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings
