"""What a command has written: the beginning and the end, whatever the length."""

from __future__ import annotations

import threading
from codecs import getincrementaldecoder
from collections import deque

__all__ = ("Output",)


class Output:
    """What a stream has given: its beginning and its end."""

    def __init__(self, encoding: str, limit: int) -> None:
        self.received = 0
        self.is_at_end = False
        self._decoder = getincrementaldecoder(encoding)(errors="replace")
        self._head: deque[str] = deque()
        self._room = limit - limit // 2
        self._tail: deque[str] = deque()
        self._tail_limit = limit // 2
        self._tail_size = 0
        self._left_out = 0
        self._lock = threading.Lock()  # for the pipes that are read in threads

    def add(self, chunk: bytes) -> None:
        with self._lock:
            self.received += len(chunk)
            self._add(self._decoder.decode(chunk))

    def _add(self, text: str) -> None:
        if self._room:
            head, text = text[: self._room], text[self._room :]
            self._head.append(head)
            self._room -= len(head)
        if not text:
            return
        self._tail.append(text)
        self._tail_size += len(text)
        while self._tail_size - len(self._tail[0]) >= self._tail_limit:
            gone = len(self._tail.popleft())
            self._tail_size -= gone
            self._left_out += gone

    @property
    def is_cut(self) -> bool:
        return self._left_out > 0 or self._tail_size > self._tail_limit

    def text(self, *, final: bool = False) -> str:
        with self._lock:
            if final:  # half a character at the end is no character
                self._add(self._decoder.decode(b"", final=True))
            head, tail = "".join(self._head), "".join(self._tail)
        surplus = max(len(tail) - self._tail_limit, 0)
        left_out = self._left_out + surplus
        if not left_out:
            return head + tail
        return f"{head}\n[… {left_out} characters left out …]\n{tail[surplus:]}"
