"""Back ends that answer one prompt at a time, for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tengtune.backends.base import Asked


def one_by_one(
    generate: Callable[..., Iterator[int]], asked: Iterable[Asked], stop_ids: Iterable[int]
) -> Iterator[int]:
    """`Backend.generate_many` out of `Backend.generate`."""
    for number, each in enumerate(asked):
        for token in generate(each.prompt, each.max_new_tokens, stop_ids, each.sampling):
            if not each.take(token):
                break
        yield number


def answers(
    many: Callable[[Iterable[Asked], Iterable[int]], Iterator[int]],
    prompts: Iterable[list[int]],
    max_new_tokens: int,
    stop_ids: Iterable[int] = (),
) -> list[list[int]]:
    """The greedy answers of `Backend.generate_many`, in the order of the prompts."""
    found: list[list[int]] = []

    def asked() -> Iterator[Asked]:
        for prompt in prompts:
            ids: list[int] = []
            found.append(ids)
            yield Asked(prompt, max_new_tokens, lambda token, ids=ids: ids.append(token) or True)  # type: ignore[misc]

    ended = sorted(many(asked(), stop_ids))
    assert ended == list(range(len(found)))
    return found
