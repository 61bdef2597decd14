"""Operations on standing grants: draft one from a held call or for a tool, sign, show and revoke it.

A draft is not stored. It contains the terms, their digest and sentences that describe the covered calls; a person signs
the digest, and `sign` stores the grant with that proof. Waiting calls that the new grant covers are approved with it.
"""

import uuid
from dataclasses import dataclass
from typing import Final

from interlock.approvals import api, grant_terms, grants_api
from interlock.approvals.grant_terms import BadRules
from interlock.approvals.grants_api import GrantRule, GrantTerms
from interlock.approvals.operations.inbox import InboxOperations, accepted, only_match
from interlock.approvals.protocol.approval import Kind
from interlock.approvals.standing_grants import DECIDED_BY, StandingGrants, StoredGrant, approve_waiting
from interlock.catalog.catalog import EVERYTHING, Catalog
from interlock.catalog.routes import Route
from interlock.core.clock import rfc3339
from interlock.core.operator_errors import refused_as
from interlock.core.views import view_of
from interlock.gate.protocol.held_call import read_proof_untrusted
from interlock.operator.operation import CHANGED, handles
from interlock.wire.jsontext.canonical import AmbiguousJson, read_untrusted
from interlock.wire.refusal import NotFound

SECONDS: Final = 86_400  # where neither a number of calls nor a time is given
CALLS_SHOWN_MAX: Final = 20


@dataclass(eq=False)
class GrantOperations:
    """Handlers of the operations on standing grants. `approvals` has the inbox, keys and passkeys that they use."""

    grants: StandingGrants
    catalog: Catalog
    approvals: InboxOperations

    @handles(grants_api.LIST_GRANTS)
    def list_all(self) -> grants_api.Grants:
        calls = self._calls()
        return grants_api.Grants(grants=tuple(self._view(stored, calls) for stored in self.grants.all()))

    def _calls(self) -> dict[str, list[str]]:
        """Return the ids of calls that grants approved, keyed by the name of the grant. The newest id is last."""
        ids: dict[str, list[str]] = {}
        for approval in self.approvals.inbox.listed(kind=Kind.CALL):
            if approval.decision is not None and approval.decision.by.startswith(DECIDED_BY):
                ids.setdefault(approval.decision.by, []).append(approval.id)
        return ids

    @handles(grants_api.GET_GRANT)
    def get(self, id: str) -> grants_api.Grant:
        """Return a grant by its id or the first characters of the id. Raise NotFound if there is none, and Refused if
        several match.
        """
        return self._view(self._find(id))

    @handles(grants_api.DRAFT_GRANT)
    def draft(self, body: grants_api.DraftGrant) -> grants_api.GrantDraft:
        """Return a grant that can be signed, without storing it. Raise NotFound or Refused if the request names no call
        or tool that a grant can cover.
        """
        if body.approval is not None:
            grant = self._from_call(body, body.approval)
        elif body.tool is not None and body.who is not None:
            rules = tuple(sorted(body.rules or (), key=lambda rule: rule.at))
            grant = self._new_grant(body, self._route(body.tool), body.who, rules)
        else:
            raise refused_as(grants_api.BAD_GRANT_DRAFT, "a grant comes from a held call, or names a tool and a caller")
        try:
            grant_terms.check_grant(grant, self.approvals.clock.wall())
        except BadRules as bad:
            raise refused_as(grants_api.BAD_GRANT_DRAFT, str(bad)) from None
        route = self._route(grant.tool)
        return grants_api.GrantDraft(
            terms=grant,
            digest=grant_terms.grant_digest(grant),
            words=words(grant),
            is_held_below=route.gate is not None and route.gate.relays,
            approvers=tuple(self.approvals.anchors.approver_names(grant.tool)),
            passkey_origin=self.approvals.passkeys.find_origin(grant.tool),
            signing_keys=self.approvals.keys.names(),
        )

    @handles(grants_api.ASK_GRANT_PASSKEY)
    def passkey_request(self, body: grants_api.NameGrant) -> api.PasskeyRequest:
        """Return the options with which a browser asks a passkey to sign the grant. Raise Refused
        if that is not possible.
        """
        return accepted(self.approvals.passkeys.request(accepted(self.grants.question(body.terms))))

    @handles(grants_api.PROVE_GRANT)
    async def prove(self, body: grants_api.UnlockForGrant, by: str) -> api.SignedProof:
        """Sign the grant with an operator key of this machine, unlocked by its passphrase, and return the proof. Raise
        Refused if that fails.
        """
        question = accepted(self.grants.question(body.terms))
        proof = await self.approvals.keys.sign(question, body.key, body.passphrase, by=by)
        return api.SignedProof(proof=accepted(proof))

    @handles(grants_api.SIGN_GRANT)
    async def sign(self, body: grants_api.SignGrant, by: str) -> grants_api.Grant:
        """Store a drafted grant with the proof of an approver. Raise NotFound or Refused if the draft or the proof is
        not accepted.
        """
        proof, grant = accepted(read_proof_untrusted(body.proof)), body.terms
        route = self._route(grant.tool)
        if route.offered_digest != grant.tool_digest:
            raise refused_as(CHANGED, "the tool is defined otherwise by now; draft the grant again")
        stored = accepted(await self.grants.sign(grant, proof, by=by))
        await approve_waiting(stored, self.approvals.inbox, self.approvals.clock.wall())
        return self._view(stored)

    @handles(grants_api.REVOKE_GRANT)
    async def revoke(self, id: str, by: str) -> grants_api.Grant:
        """Revoke a grant. Raises NotFound, Refused."""
        return self._view(accepted(await self.grants.revoke(self._find(id).grant.id, by=by)))

    # Drafting

    def _from_call(self, wanted: grants_api.DraftGrant, reference: str) -> GrantTerms:
        """Return the terms of a grant for calls like the held call whose id starts with `reference`."""
        exact = self.approvals.inbox.get(reference)
        matches = [exact] if exact is not None else self.approvals.inbox.find_by_prefix(reference.lower())
        approval = only_match("approval", reference, matches)
        if approval.kind is not Kind.CALL or approval.params is None:
            raise refused_as(grants_api.NOT_GRANTABLE, "a grant comes from a call that waits, with its arguments")
        route = self._route(approval.tool)
        if route.offered_digest != approval.tool_digest:
            raise refused_as(CHANGED, "the tool is defined otherwise than it was when the call was made")
        try:
            arguments = read_untrusted(bytes(approval.params or b"{}"))
            initial = grant_terms.proposed_rules(arguments) if wanted.rules is None else wanted.rules
            rules = grant_terms.completed_rules(initial, arguments)
        except (BadRules, AmbiguousJson) as bad:
            raise refused_as(grants_api.BAD_GRANT_DRAFT, str(bad)) from None
        return self._new_grant(wanted, route, approval.requested_by, rules)

    def _new_grant(
        self, wanted: grants_api.DraftGrant, route: Route, who: str, rules: tuple[GrantRule, ...]
    ) -> GrantTerms:
        now = int(self.approvals.clock.wall())
        seconds = SECONDS if wanted.seconds is None and wanted.calls is None else wanted.seconds
        return GrantTerms(
            id=str(uuid.uuid4()),
            aggregator_id=self.approvals.aggregator_id,
            tool=route.qualified,
            tool_digest=route.offered_digest,
            who=who,
            rules=rules,
            calls=wanted.calls,
            until=None if seconds is None else now + seconds,
            issued_at=now,
            reason=wanted.reason or None,
        )

    def _route(self, tool: str) -> Route:
        view = self.catalog.namespace.view(EVERYTHING)
        route = view.find_tool(tool)
        if route is None:
            raise NotFound("tool", tool, [candidate.qualified for candidate in view.tool_routes])
        if not route.may_be_granted:
            raise refused_as(grants_api.NOT_GRANTABLE, _why_not(route), {"tool": tool})
        return route

    # Looking

    def _find(self, reference: str) -> StoredGrant:
        exact = self.grants.get(reference)
        if exact is not None:
            return exact
        grants = {stored.grant.id: stored for stored in self.grants.all()}
        matches = [stored for id, stored in grants.items() if id.startswith(reference.lower())]
        return only_match("grant", reference, matches, list(grants))

    def _view(self, stored: StoredGrant, calls: dict[str, list[str]] | None = None) -> grants_api.Grant:
        grant, over = stored.grant, self.grants.find_end_reason(stored.grant.id)
        used = (self._calls() if calls is None else calls).get(f"{DECIDED_BY}{grant.id}", [])
        return view_of(
            grants_api.Grant,
            stored,
            stored.proof,
            terms=grant,
            digest=grant_terms.grant_digest(grant),
            words=words(grant),
            state="active" if over is None else "over",
            over=over,
            until=None if grant.until is None else rfc3339(grant.until),
            approvals=tuple(used[-CALLS_SHOWN_MAX:]),
        )


def words(grant: GrantTerms) -> tuple[str, ...]:
    """Describe in sentences which calls the grant allows."""
    sentences = [f"{grant.who} may call {grant.tool}"]
    for rule in grant.rules:
        sentences.append(f"{rule.at} must be {grant_terms.rule_text(rule)}" if rule.at else "with any arguments")
    if not grant.rules or grant.rules[0].at:
        sentences.append("no other argument may be there")
    if grant.calls is not None:
        sentences.append(f"{grant.calls} times" if grant.calls > 1 else "once")
    if grant.until is not None:
        sentences.append(f"until {rfc3339(grant.until)}")
    sentences.append("while the definition of the tool stays as it is")
    return tuple(sentences)


def _why_not(route: Route) -> str:
    if not route.is_held:
        return f"calls of {route.qualified} are not held here, so there is nothing to grant"
    if route.gate is not None and route.gate.by_contract:
        return f"the contract of {route.qualified} asks before each call"
    return f"no operator has said yet what {route.qualified} does: interlock tools classify {route.qualified}"
