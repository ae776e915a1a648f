"""Actor names belong to the namespace of the driver, also in work that the driver submits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import marline
import pytest
from harness.waiting import PATIENCE
from marline._session import sessions

Begin = Callable[[str | None], object]


@pytest.fixture
def begin(cluster: str) -> Begin:
    """A function that ends the driver's session and starts a new one in a namespace."""

    def begin(namespace: str | None) -> object:
        address, token = sessions.current().address_and_token()
        marline.shutdown()
        if cluster == "embedded":
            return marline.init(num_cpus=2, namespace=namespace)
        return marline.init(address, token=token, namespace=namespace)

    return begin


@marline.remote
class Sitter:
    def sees(self) -> Any:
        return look()

    def sees_from_a_thread(self) -> Any:
        return in_a_thread()

    def has_a_task_see(self) -> Any:
        return marline.get(marline.remote(look).remote())


@marline.remote
class Async:
    async def sees(self) -> Any:
        return look()


def look() -> Any:
    """Returns the current namespace, and the id of the actor "one" that is found in it."""
    found = marline.get_actor("one")._actor.id
    assert "one" in marline.list_named_actors()
    return marline.get_runtime_context().namespace, found


def in_a_thread() -> Any:
    seen = []
    thread = threading.Thread(target=lambda: seen.append(look()))
    thread.start()
    thread.join(PATIENCE)
    return seen[0]


def makes(name: str) -> Any:
    return Sitter.options(name=name, num_cpus=0).remote()


def nested(depth: int) -> Any:
    if depth == 0:
        return look()
    return marline.get(marline.remote(nested).options(num_cpus=0).remote(depth - 1))


for function in (look, in_a_thread, makes, nested):
    function.__module__ = "__main__"


def test_names_count_in_the_namespace_of_the_driver(begin: Begin) -> None:
    begin("mine")
    one = Sitter.options(name="one").remote()
    other = Sitter.options(name="one", namespace="other").remote()
    assert marline.get_runtime_context().namespace == "mine"
    assert marline.get_actor("one") == marline.get_actor("one", namespace="mine") == one
    assert marline.get_actor("one", namespace="other") == other != one
    assert marline.list_named_actors() == ["one"]
    assert look() == in_a_thread() == ("mine", one._actor.id)
    with pytest.raises(marline.NotFoundError, match="mine"):
        marline.get_actor("two")
    with pytest.raises(marline.NotFoundError, match="default"):
        marline.get_actor("one", namespace="default")


def test_tasks_and_actors_look_where_their_driver_does(begin: Begin) -> None:
    begin("mine")
    one = Sitter.options(name="one", num_cpus=0).remote()
    seen = "mine", one._actor.id
    for function in (look, in_a_thread):
        assert marline.get(marline.remote(function).remote()) == seen
    assert marline.get(marline.remote(nested).remote(2)) == seen
    assert (
        marline.get([one.sees.remote(), one.sees_from_a_thread.remote(), one.has_a_task_see.remote()])
        == [seen] * 3
    )
    side_by_side = Sitter.options(max_concurrency=2).remote()
    assert marline.get(side_by_side.sees.remote()) == seen
    assert marline.get(Async.remote().sees.remote()) == seen


def test_what_a_task_names_is_found_by_its_driver(begin: Begin) -> None:
    begin("mine")
    made = marline.get(marline.remote(makes).remote("two"))
    assert marline.get_actor("two") == made
    assert marline.list_named_actors(all_namespaces=True) == [{"namespace": "mine", "name": "two"}]


def test_a_driver_that_names_no_namespace_gets_the_default_one(begin: Begin) -> None:
    begin("mine")
    begin(None)
    one = Sitter.options(name="one").remote()
    assert look() == marline.get(marline.remote(look).remote()) == ("default", one._actor.id)


def test_a_namespace_does_not_stay_with_an_executor(begin: Begin, cluster: str) -> None:
    if cluster == "embedded":
        pytest.skip("the executors of an embedded cluster end with its driver")
    begin("mine")
    context = marline.remote(marline.get_runtime_context)
    assert {one.namespace for one in marline.get([context.remote() for _ in range(8)])} == {"mine"}
    begin(None)
    assert {one.namespace for one in marline.get([context.remote() for _ in range(8)])} == {"default"}


def test_an_actor_stays_in_the_namespace_it_was_made_in(begin: Begin, cluster: str) -> None:
    if cluster == "embedded":
        pytest.skip("the actors of an embedded cluster end with its driver")
    begin("mine")
    one = Sitter.options(name="one", lifetime="detached").remote()
    seen = "mine", one._actor.id
    assert marline.get(one.sees.remote()) == seen
    begin("yours")
    found = marline.get_actor("one", namespace="mine")
    assert marline.get([found.sees.remote(), found.has_a_task_see.remote()]) == [seen] * 2
    marline.kill(found)


@pytest.mark.usefixtures("cluster")
def test_an_invalid_namespace_is_refused() -> None:
    wrong: Any
    for wrong, error in (("", ValueError), (7, TypeError)):
        with pytest.raises(error, match="namespace"):
            marline.init(namespace=wrong)
        with pytest.raises(error, match="namespace"):
            marline.get_actor("one", namespace=wrong)
        with pytest.raises(error, match="namespace"):
            Sitter.options(name="one", namespace=wrong).remote()
