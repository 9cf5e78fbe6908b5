"""Routes, methods, keys, probes and headers of a real front."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from backends.log import FIELDS
from gateway.config import ServerOptions
from gateway.tenants import AuthOptions, StaticKey

if TYPE_CHECKING:
    from tests.integration.front.front_server import Front, Serve

CHAT = "/v1/chat/completions"
BODY = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
POSTS = (CHAT, "/v1/completions", "/v1/responses", "/v1/embeddings", "/tokenize", "/detokenize")
GETS = (
    "/v1/models",
    "/v1/models/scripted",
    "/metrics",
    "/load",
    "/health",
    "/ready",
    "/ping",
    "/version",
    "/",
    "/api/hello",
)


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/nope"), ("GET", "/v1"), ("PUT", "/x.html"), ("GET", "/a/b")]
)
def test_an_unknown_route_is_told_in_the_envelope(front: Front, method: str, path: str) -> None:
    with front.client() as client:
        reply = client.request(method, path)

    assert reply.status_code == 404
    assert reply.json()["error"] == {
        "message": f"Invalid URL ({method} {path})",
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }


@pytest.mark.parametrize("path", POSTS)
def test_a_wrong_method_on_a_post_route_is_told_what_is_allowed(front: Front, path: str) -> None:
    with front.client() as client:
        replies = {method: client.request(method, path) for method in ("GET", "DELETE", "HEAD", "OPTIONS")}

    assert [replies[method].status_code for method in replies] == [405, 405, 405, 204]
    assert {reply.headers["allow"] for reply in replies.values()} == {"OPTIONS, POST"}
    assert replies["GET"].json()["error"]["code"] == "method_not_supported"
    assert replies["HEAD"].content == b""


@pytest.mark.parametrize("path", GETS)
def test_get_routes_answer_head_and_options_and_refuse_the_rest(front: Front, path: str) -> None:
    with front.client() as client:
        replies = [client.request(method, path) for method in ("GET", "HEAD", "OPTIONS", "DELETE")]

    assert [reply.status_code for reply in replies] == [200, 200, 204, 405]
    assert replies[1].content == b""
    assert "GET" in replies[3].headers["allow"]
    assert sorted(replies[3].json()["error"]) == ["code", "message", "param", "type"]


def test_a_trailing_slash_is_the_same_route(front: Front) -> None:
    with front.client(follow_redirects=False) as client:
        assert client.post(f"{CHAT}/", json=BODY).status_code == 200
        assert client.get("/v1/models/").status_code == 200
        assert client.post("/tokenize/", json={"prompt": "a"}).status_code == 200
        assert client.get("/health/").status_code == 200


@pytest.mark.parametrize("sent", ["org/model:7b@x", "org%2Fmodel%3A7b%40x", "org/model%3A7b@x/"])
def test_model_ids_with_slashes_are_found_raw_and_encoded(serve: Serve, sent: str) -> None:
    front = serve(models=["org/model:7b@x", "ünï cödé"])

    with front.client() as client:
        found = client.get(f"/v1/models/{sent}")
        other = client.get("/v1/models/ünï cödé")
        absent = client.get("/v1/models/org/Model:7b@x")

    assert (found.json()["id"], other.json()["id"]) == ("org/model:7b@x", "ünï cödé")
    assert (absent.status_code, absent.json()["error"]["code"]) == (404, "model_not_found")


def test_models_are_listed_for_the_sdk(serve: Serve) -> None:
    front = serve(models=["a", "org/b"])

    with front.openai() as client:
        assert [model.id for model in client.models.list()] == ["a", "org/b"]
        assert client.models.retrieve("org/b").id == "org/b"


def test_probes(front: Front) -> None:
    with front.client() as client:
        health, ready, version = (client.get(path).json() for path in ("/health", "/ready", "/version"))
        ping = client.post("/ping")

    assert (health["status"], type(health["gpu_available"]), health["version"]) == ("healthy", bool, version["version"])
    assert (ready["status"], ready["queue_depth"], ready["active_requests"]) == ("ready", 0, 0)
    assert ready["backends"]["test"]["ready"] is True
    assert ping.status_code == 200


def test_tokens_go_there_and_back(front: Front) -> None:
    with front.client() as client:
        tokens = client.post("/tokenize", json={"prompt": "ab cd"}).json()
        text = client.post("/detokenize", json={"model": "scripted", "tokens": tokens["tokens"]}).json()
        unknown = client.post("/tokenize", json={"model": "nope", "prompt": "x"})
        bad = client.post("/detokenize", json={"model": "scripted", "tokens": [1 << 30]})

    assert (tokens["count"], tokens["max_model_len"], text) == (2, 8192, {"prompt": "ab cd"})
    assert (unknown.status_code, bad.status_code) == (404, 400)


def test_tokenizing_without_a_model_needs_a_single_backend(serve: Serve) -> None:
    front = serve(
        backends={name: {"type": "scripted", "models": [name]} for name in ("one", "two")},
    )

    with front.client() as client:
        unclear = client.post("/tokenize", json={"prompt": "x"})
        clear = client.post("/tokenize", json={"model": "two", "prompt": "x"})

    assert (unclear.status_code, clear.status_code) == (400, 200)


def test_tokens_are_refused_for_a_model_that_the_key_may_not_use_as_for_none(serve: Serve) -> None:
    key = StaticKey(key="sk-other-models-1", models=("other",))
    front = serve(auth=AuthOptions(key=(key,)))
    bodies: dict[str, dict[str, object]] = {
        "/tokenize": {"prompt": "x"},
        "/detokenize": {"tokens": [1]},
        "/v1/responses/input_tokens": {"input": "x"},
    }

    with front.client(headers={"Authorization": "Bearer sk-other-models-1"}) as client:
        for path, body in bodies.items():
            named, unknown = (client.post(path, json={**body, "model": model}) for model in ("scripted", "nope"))
            only = client.post(path, json=body)

            assert (named.status_code, unknown.status_code, only.status_code) == (404, 404, 404)
            assert named.text == unknown.text.replace("nope", "scripted")
            assert only.text == unknown.text.replace("nope", "")


def test_two_authorization_headers_are_refused(serve: Serve) -> None:
    front = serve(auth=AuthOptions(keys=("sk-the-only-key-99",)))
    sent = [("Authorization", "Bearer sk-somebody-else"), ("Authorization", "Bearer sk-the-only-key-99")]

    with front.client(headers=sent) as client:
        assert client.post(CHAT, json=BODY).status_code == 401


def test_keys_guard_everything_but_the_probes(serve: Serve) -> None:
    front = serve(auth=AuthOptions(keys=("sk-the-only-key-99",)))

    with front.client() as client:
        closed = {
            path: client.get(path).status_code for path in ("/v1/models", "/v1/models/scripted", "/metrics", "/load")
        }
        more = ["/v1/responses/input_tokens", "/v1/responses/resp_x", "/v1/responses/resp_x/cancel"]
        more += ["/v1/messages", "/v1/messages/count_tokens"]
        closed |= {path: client.post(path, json=BODY).status_code for path in (*POSTS, *more)}
        opened = [client.get(path).status_code for path in ("/health", "/ready", "/ping", "/version")]
        opened += [
            client.head("/").status_code,
            client.head("/api/hello").status_code,
            client.options(CHAT).status_code,
        ]
        wrong = client.post(CHAT, json=BODY, headers={"Authorization": "Bearer sk-wrong-wrong-wrong"})
        right = client.post(CHAT, json=BODY, headers={"Authorization": "Bearer sk-the-only-key-99"})

    assert set(closed.values()) == {401}
    assert opened == [200, 200, 200, 200, 200, 200, 204]
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (401, "invalid_api_key")
    assert "wrong-wrong" not in wrong.text
    assert right.status_code == 200


def test_a_key_gets_only_its_own_lanes(serve: Serve) -> None:
    key = StaticKey(key="sk-batch-only-1234", tenant="b", lanes=("batch",), default_lane="batch")
    front = serve(auth=AuthOptions(key=(key,)))

    with front.client(headers={"Authorization": "Bearer sk-batch-only-1234"}) as client:
        allowed = client.post(CHAT, json=BODY, headers={"X-Laneway-Lane": "batch"})
        refused = client.post(CHAT, json=BODY, headers={"X-Laneway-Lane": "interactive"})
        unknown = client.post(CHAT, json=BODY, headers={"X-Laneway-Lane": "fast"})
        wished = client.post(CHAT, json={**BODY, "service_tier": "priority"})
        metrics = client.get("/metrics").text

    assert [reply.status_code for reply in (allowed, refused, unknown, wished)] == [200, 403, 400, 200]
    assert refused.json()["error"]["type"] == "permission_error"
    assert 'laneway_ttft_seconds_count{lane="batch"} 2.0' in metrics


def test_metrics_count_requests_and_tokens_with_bounded_labels(front: Front) -> None:
    with front.client() as client:
        client.post(CHAT, json=BODY)
        client.post(CHAT, json={**BODY, "model": "made-up-by-a-client"})
        reply = client.get("/metrics")

    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'inference_requests_total{model="scripted",route="chat",status="200"} 1.0' in reply.text
    assert 'inference_requests_total{model="unknown",route="chat",status="404"} 1.0' in reply.text
    assert "made-up" not in reply.text
    assert 'inference_latency_seconds_count{model="scripted",route="chat"} 1.0' in reply.text
    assert 'laneway_tokens_total{kind="completion"} 2.0' in reply.text
    assert 'laneway_queue_wait_seconds_count{lane="standard"} 1.0' in reply.text
    assert 'laneway_itl_seconds_count{lane="standard"}' in reply.text
    assert 'laneway_running{lane="standard"} 0.0' in reply.text
    assert 'laneway_waiting{lane="batch"} 0.0' in reply.text
    assert 'laneway_scripted_started_total{backend="test"} 1.0' in reply.text
    assert 'laneway_backend_ready{backend="test"} 1.0' in reply.text


def test_browsers_of_allowed_origins_may_call(serve: Serve) -> None:
    front = serve(
        server=ServerOptions(cors_origins=("https://app.example",)), auth=AuthOptions(keys=("sk-the-only-key-99",))
    )
    asked = "authorization,content-type,x-stainless-os,openai-project"
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": asked}

    with front.client(headers={"Origin": "https://app.example"}) as client:
        allowed = client.options(CHAT, headers=preflight)
        error = client.post(CHAT, json=BODY)
        missing = client.get("/nope")
        other = client.post(CHAT, json=BODY, headers={"Origin": "https://evil.example"})

    assert allowed.status_code in (200, 204)
    granted = {name.strip().lower() for name in allowed.headers["access-control-allow-headers"].split(",")}
    assert set(asked.split(",")) <= granted
    for reply in (allowed, error, missing):
        assert reply.headers["access-control-allow-origin"] == "https://app.example"
    assert error.status_code == 401
    assert "x-request-id" in error.headers["access-control-expose-headers"]
    assert "access-control-allow-origin" not in other.headers


def test_without_cors_no_origin_is_named(front: Front) -> None:
    with front.client(headers={"Origin": "https://app.example"}) as client:
        assert client.options(CHAT).status_code == 204
        assert "access-control-allow-origin" not in client.post(CHAT, json=BODY).headers


def test_a_root_path_is_served_with_and_without_the_prefix(serve: Serve) -> None:
    front = serve(server=ServerOptions(root_path="/llm"))

    with front.client() as client:
        for prefix in ("", "/llm"):
            assert client.post(f"{prefix}{CHAT}", json=BODY).status_code == 200
            assert client.get(f"{prefix}/v1/models/scripted").json()["id"] == "scripted"
            assert client.get(f"{prefix}/health").status_code == 200


def test_bare_paths_are_served_where_that_is_asked_for(serve: Serve) -> None:
    front = serve(server=ServerOptions(root_path="/llm", bare_paths=True))

    with front.client() as client:
        for prefix in ("", "/llm", "/v1", "/llm/v1"):
            assert client.post(f"{prefix}/chat/completions", json=BODY).status_code == 200
            assert client.get(f"{prefix}/models").json()["object"] == "list"
            assert client.get(f"{prefix}/models/scripted").json()["id"] == "scripted"
        assert client.get("/chat/completions").status_code == 405
        assert client.get("/modelsx").json()["error"]["message"] == "Invalid URL (GET /modelsx)"
        assert client.get("/health").status_code == client.get("/llm/health").status_code == 200


def test_every_request_leaves_one_access_line_without_secrets(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "laneway.access")
    front = serve(auth=AuthOptions(keys=("sk-the-only-key-99",)))

    with front.client(headers={"X-Request-Id": "trace-1"}) as client:
        client.post(CHAT, json=BODY, headers={"Authorization": "Bearer sk-the-only-key-99"})
        client.post(CHAT, json=BODY, headers={"Authorization": "Bearer sk-some-other-key"})
        client.get("/nope?token=sk-in-the-query")

    lines = [getattr(record, FIELDS) for record in caplog.records if record.name == "laneway.access"]
    assert [line["status"] for line in lines] == [200, 401, 404]
    assert {line["request_id"] for line in lines} == {"trace-1"}
    assert (lines[0]["model"], lines[0]["lane"], lines[0]["usage"].completion_tokens) == ("scripted", "standard", 2)
    assert lines[0]["key"].startswith("key_")
    assert lines[1]["error"] == "NotAuthenticated"
    assert "sk-" not in f"{lines}{caplog.text}"


def test_probes_leave_their_access_line_at_debug_unless_they_are_refused(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "laneway.access")
    front = serve(auth=AuthOptions(keys=("sk-the-only-key-99",)), server=ServerOptions(root_path="/llm"))

    with front.client(headers={"Authorization": "Bearer sk-the-only-key-99"}) as client:
        for path in ("/health", "/ready", "/ping", "/metrics", "/llm/health", "/v1/models"):
            client.get(path)
        client.get("/metrics", headers={"Authorization": ""})

    lines = [record for record in caplog.records if record.name == "laneway.access"]
    quiet = [getattr(line, FIELDS)["path"] for line in lines if line.levelname == "DEBUG"]
    loud = [getattr(line, FIELDS)["path"] for line in lines if line.levelname == "INFO"]
    assert (quiet, loud) == (["/health", "/ready", "/ping", "/metrics", "/llm/health"], ["/v1/models", "/metrics"])
