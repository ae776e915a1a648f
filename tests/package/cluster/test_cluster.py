"""Queries about the cluster and about the asking task or actor: resources, nodes, context."""

from __future__ import annotations

import os
import warnings

import marline
import pytest
from harness.processes import is_alive
from marline._session.own_cluster import warn_of_other

pytestmark = pytest.mark.usefixtures("cluster")


def test_resources_and_nodes_are_reported() -> None:
    assert marline.cluster_resources() == {"CPU": 2.0}
    assert marline.available_resources() == {"CPU": 2.0}
    (node,) = marline.nodes()
    assert node["Alive"] and node["Resources"] == node["Available"] == {"CPU": 2.0}
    assert node["NodeManagerHostname"] == os.uname().nodename and is_alive(node["Pid"])
    assert node["NodeID"] and node["NodeManagerAddress"].startswith(("unix:", "127.0.0.1:"))


def test_named_actors_are_listed() -> None:
    @marline.remote
    class Sitter: ...

    handles = [
        Sitter.options(name="one").remote(),
        Sitter.options(name="two", namespace="other").remote(),
    ]
    assert marline.list_named_actors() == ["one"]
    everywhere = marline.list_named_actors(all_namespaces=True)
    assert {(one["namespace"], one["name"]) for one in everywhere} == {("default", "one"), ("other", "two")}
    del handles


def test_a_task_knows_itself() -> None:
    @marline.remote
    def who() -> marline.RuntimeContext:
        return marline.get_runtime_context()

    ref = who.remote()
    context = marline.get(ref)
    assert (context.task_id, context.attempt, context.actor_id) == (ref.task_id(), 1, None)
    assert marline.get_runtime_context() == marline.RuntimeContext()


@pytest.mark.parametrize("is_async", [False, True])
def test_an_actor_knows_itself(is_async: bool) -> None:
    @marline.remote
    class Plain:
        def who(self) -> marline.RuntimeContext:
            return marline.get_runtime_context()

    @marline.remote
    class Async:
        async def who(self) -> marline.RuntimeContext:
            return marline.get_runtime_context()

    actor = (Async if is_async else Plain).remote()
    ref = actor.who.remote()
    context = marline.get(ref)
    assert (context.task_id, context.actor_epoch) == (ref.task_id(), 1)
    assert context.actor_id is not None and not context.was_current_actor_reconstructed


@marline.remote
def address_in_a_task(address: str | None) -> str:
    return marline.init(address).address


def test_init_in_a_task_keeps_its_cluster_whatever_address_it_names() -> None:
    home = marline.get(address_in_a_task.remote(None))
    for address in (home, "local", "auto", "127.0.0.1:1"):
        assert marline.get(address_in_a_task.remote(address)) == home


def test_init_in_a_task_warns_if_it_names_another_cluster() -> None:
    for address, home, token in [
        ("localhost:7420", "10.0.0.1:7420", "any"),
        ("http://10.0.0.1:7420", "10.0.0.1:7420", "any"),
        ("unix:/driver", "10.0.0.1:7420", "any"),
        ("controller:7420", "unix:/socket", "any"),
    ]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warn_of_other("init", address, (home, token))
    for address, home, other in [
        ("10.0.0.1:7421", "10.0.0.1:7420", "any"),
        ("unix:/a", "unix:/b", "any"),
        ("127.0.0.1:1", "unix:/socket", "any"),
        ("controller:7420", "unix:/embedded", None),
    ]:
        with pytest.warns(UserWarning, match="part of the cluster at"):
            warn_of_other("init", address, (home, other))
