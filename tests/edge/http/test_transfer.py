import asyncio
from typing import Any, cast

from kvbudget.edge.http.heads import ResponseHead
from kvbudget.edge.http.limits import UpstreamLimits
from kvbudget.edge.http.transfer import Claim, Origin, Transfer


class Answer(Transfer):
    def on_head(self, head: ResponseHead, *, alone: bool) -> None:
        """Nothing to decide."""

    def on_body(self, raw: bytes, body: bytes) -> None:
        if body == b"slow":
            self.deadline_s = None  # as a relay does whose client does not keep up


def test_what_was_on_its_way_when_a_client_fell_behind_sets_no_deadline_again() -> None:
    loop = asyncio.new_event_loop()
    try:
        transfer = Answer(b"POST", (), Claim.CHARGED, Origin(UpstreamLimits(read_stall_s=5), loop))
        transfer.deadline_s = loop.time()
        transfer.received(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nfast")
        assert cast(Any, transfer).deadline_s > loop.time() + 4
        transfer.received(b"slow")
        transfer.received(b"more")
        assert transfer.deadline_s is None
    finally:
        loop.close()
