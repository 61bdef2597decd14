"""A legacy client and a 2026-07-28 server: when the server answers `input_required`, the client is asked in its own way
and the request is sent again with what it said, until the server is content or has asked too often.
"""

import asyncio
import secrets
from typing import Final

from msgspec import Raw

from interlock.core.calls.call import Call, Outcome
from interlock.mcp.capabilities import may_be_asked
from interlock.mcp.meta import RAW_EMPTY
from interlock.mcp.methods import ELICIT
from interlock.mcp.mrtr import ROUNDS_MAX, InputRequired, Question
from interlock.wire.jsonrpc.codec import decode_object, encode_value, find_string
from interlock.wire.refusal import INTERNAL_ERROR, Refusal

# A server that only wants its state back waits for something: it is asked again, but not at once.
PAUSE_S: Final = 0.05
PAUSE_MAX_S: Final = 0.25
_RESULT: Final = b'"result":'


class Interview:
    """One round of questions. To the client's session it looks like a link that waits for answers."""

    def __init__(self, call: Call, wanted: InputRequired) -> None:
        self._call = call
        self._wanted = wanted
        self._answers: dict[str, Raw] = {}
        self._open = {key: b'"%d"' % number for number, key in enumerate(wanted.questions)}
        self._ended = False

    def start(self) -> None:
        call = self._call
        channel = call.caller.channel
        dialogue = call.open_dialogue()
        dialogue.rounds += 1
        if channel is None or dialogue.rounds > ROUNDS_MAX:
            too_often = f"the server asked more than {ROUNDS_MAX} times"
            reason = "the client cannot be asked" if channel is None else too_often
            call.on_failed(Refusal(INTERNAL_ERROR, reason, {"reason": "input_required"}), Outcome.ERROR)
            return
        for question in self._wanted.questions.values():
            if not may_be_asked(call.caller.modern_capabilities, question.method, question.params):
                self._on_unanswered(f"it does not support {question.method}")
                return
        dialogue.abandon = self.abandon
        call.asking += 1  # people take their time: no deadline while they are asked
        if not self._open:
            pause_s = min(PAUSE_MAX_S, PAUSE_S * 2 ** (dialogue.rounds - 1))
            asyncio.get_running_loop().call_later(pause_s, self._finish)
            return
        for key, name in list(self._open.items()):
            if not self._ended:
                question = self._wanted.questions[key]
                channel.ask(self, name, question.method, _for_legacy(question), call.sink)

    def respond(self, upstream_id: bytes, payload: bytes) -> None:
        """Handle a client's answer to one question (`AnswerReceiver`)."""
        key = next((key for key, name in self._open.items() if name == upstream_id), None)
        if key is None or self._ended:
            return
        if not payload.startswith(_RESULT):
            self._on_refused(payload)
            return
        del self._open[key]
        self._answers[key] = Raw(payload[len(_RESULT) :])
        if not self._open:
            self._finish()

    def abandon(self) -> None:
        """Withdraw the open questions because the call has ended."""
        self._ended = True
        channel = self._call.caller.channel
        if channel is not None:
            for name in self._open.values():
                channel.withdraw(self, name, RAW_EMPTY)

    def _on_refused(self, payload: bytes) -> None:
        """End the call of a client that answers a question with an error; the server cannot be notified of it."""
        error = decode_object(payload.partition(b":")[2]) or {}
        self._on_unanswered(find_string(error.get("message")) or "refused")

    def _on_unanswered(self, why: str) -> None:
        refusal = Refusal(INTERNAL_ERROR, f"the client did not answer the server: {why}", {"reason": "input_refused"})
        self._call.on_failed(refusal, Outcome.ERROR)

    def _finish(self) -> None:
        if self._ended:
            return
        self._ended = True
        call = self._call
        call.open_dialogue().abandon = None
        call.asking -= 1
        if self._answers:
            call.params["inputResponses"] = self._answers
        else:
            call.params.pop("inputResponses", None)
        if self._wanted.state is None:
            call.params.pop("requestState", None)
        else:
            call.params["requestState"] = self._wanted.state
        if call.link is not None and not call.done:
            call.link.send_again(call)


def _for_legacy(question: Question) -> Raw:
    """Return a question's params for a legacy client.

    2025-11-25 requires an id for each page to visit; 2026-07-28 has none.
    """
    params = decode_object(question.params) if question.method == ELICIT else None
    if params is None or find_string(params.get("mode")) != "url" or "elicitationId" in params:
        return question.params
    return Raw(encode_value({**params, "elicitationId": secrets.token_urlsafe(16)}))
