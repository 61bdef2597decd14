"""The requests that a server sends to its clients: sampling, elicitation, roots, ping."""

import os
from typing import TYPE_CHECKING, Final

from msgspec import Raw

from interlock.core.calls.call import Call, Pending
from interlock.core.calls.caller import Asking
from interlock.links.link_part import LinkPart
from interlock.mcp.meta import RAW_EMPTY
from interlock.mcp.methods import PING, ROOTS_LIST
from interlock.mcp.roots import encode_roots, hold_answers_untrusted, hold_roots_untrusted
from interlock.wire.jsonrpc.codec import Request
from interlock.wire.jsonrpc.errors import error_body
from interlock.wire.refusal import METHOD_NOT_FOUND, Refusal

if TYPE_CHECKING:
    from interlock.links.connected_link import ConnectedLink

_RESULT: Final = b'"result":'


class ServerQuestions(LinkPart):
    """The open questions of one server, each with the call or task on whose behalf it was asked.

    A question is open until the client has answered, the server withdraws it, or the call ends.
    """

    __slots__ = ("_for_roots", "_open")

    def __init__(self, link: "ConnectedLink") -> None:
        super().__init__(link)
        self._open: dict[bytes, Asking] = {}  # by the server's ids
        self._for_roots: set[bytes] = set()  # the ids of questions for roots

    def receive(self, request: Request, origin: Pending | None) -> None:
        """Answer a request of the server, or pass it to the client of the call that it belongs to.

        `origin`: the request on whose stream it arrived, if the transport tells.
        """
        link = self.link
        if request.method == PING:
            self.respond(request.id, b'"result":{}')
        elif link.modern:
            self.refuse(request, "a 2026-07-28 server sends no requests")
        elif request.method == ROOTS_LIST and link.owner is None:
            # The roots of one client must not change what the server does for all others.
            link.on_asked(request.method, in_call=False)
            self.respond_roots(request)
        elif not link.events.tasks.on_task_request(link, request, origin):
            link.on_asked(request.method, in_call=isinstance(origin, Call))
            call = link.find_call(origin)
            if isinstance(call, Call):
                self.ask_client(request, call)
            elif not link.events.on_orphan_request(link, request):
                self.refuse(request, "the client this is for cannot be told from others with calls under way")

    def ask_client(self, request: Request, asking: Asking) -> None:
        """Pass a question to the client of `asking`, whose answer arrives at `respond`."""
        link = self.link
        refusal = link.events.on_question(link, asking)
        if refusal is not None:
            self.respond(request.id, b'"error":' + error_body(refusal, draft=True))
            return
        self._open[request.id] = asking
        if request.method == ROOTS_LIST:
            self._for_roots.add(request.id)
        if isinstance(asking, Call):
            asking.open_dialogue().questions += (request.id,)
        asking.on_request(self, request)

    def is_open(self, question_id: bytes, asking: Asking) -> bool:
        """Return whether the server still waits for this answer."""
        return self._open.get(question_id) is asking

    def respond(self, upstream_id: bytes, payload: bytes) -> None:
        """Send an answer to the server. `payload`: the member `result` or `error`, encoded."""
        link = self._link_ref()
        if link is None:
            return
        is_for_roots = upstream_id in self._for_roots
        asking = self._close(upstream_id)
        if is_for_roots and asking is not None and payload.startswith(_RESULT):
            payload = self._limit_roots(asking, Raw(payload[len(_RESULT) :]))
        if asking is not None and asking.caller.asker is not None:
            asking.asking -= 1
            asking.progressed = True
        if link.pipe is not None:
            payload = link.events.tasks.on_task_answer(link, upstream_id, payload)
            link.pipe.send(b'{"jsonrpc":"2.0","id":%b,%b}' % (upstream_id, payload), b"", None)

    def respond_roots(self, request: Request) -> None:
        """Answer with the operator's folders, whatever roots the clients have."""
        self.respond(request.id, _RESULT + encode_roots(self.link.allowed_folders()))

    def refuse(self, request: Request, reason: str) -> None:
        self.respond(request.id, b'"error":' + error_body(Refusal(METHOD_NOT_FOUND, reason)))

    def limit_answers(self, call: Call) -> None:
        """Remove roots that the operator does not allow from the answers that a modern client sends with its call."""
        link = self.link
        answers, held = hold_answers_untrusted(call.params["inputResponses"], link.allowed_folders(), os.path.realpath)
        call.params["inputResponses"] = answers
        if held:
            link.events.on_client_roots(link, call.caller, held)

    def _limit_roots(self, asking: Asking, answer: Raw) -> bytes:
        link = self.link
        result, held = hold_roots_untrusted(answer, link.allowed_folders(), os.path.realpath)
        if held:
            link.events.on_client_roots(link, asking.caller, held)
        return _RESULT + bytes(result)

    def withdraw(self, question_id: bytes, params: Raw = RAW_EMPTY) -> None:
        """Tell the client that its answer is no longer wanted. `params`: of the server's cancellation."""
        asking = self._close(question_id)
        if asking is None:
            return
        if asking.caller.asker is not None:
            asking.asking -= 1
            asking.caller.asker.withdraw(self, question_id, params)
        elif isinstance(asking, Call):
            asking.handler.withdraw_question(asking, question_id)

    def withdraw_of(self, call: Call) -> None:
        """Withdraw the questions of a cancelled call.

        The server gets no refusal for them: one that overtakes the cancellation could be acted upon.
        """
        if call.dialogue is not None:
            for question_id in call.dialogue.questions:
                if self.is_open(question_id, call):
                    self.withdraw(question_id)

    def withdraw_all(self) -> None:
        for question_id in list(self._open):
            self.withdraw(question_id)

    def _close(self, question_id: bytes) -> Asking | None:
        """Remove a question and return on whose behalf it was asked."""
        asking = self._open.pop(question_id, None)
        self._for_roots.discard(question_id)
        if isinstance(asking, Call) and asking.dialogue is not None:
            dialogue = asking.dialogue
            dialogue.questions = tuple(each for each in dialogue.questions if each != question_id)
        return asking
