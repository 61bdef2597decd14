"""A person's consent to a token towards a server: the page they are sent to, and their return from it."""

from interlock.core.clock import Clock, rfc3339
from interlock.core.operator_errors import Refused
from interlock.core.recorder import Recorder
from interlock.credentials.api import Consent
from interlock.credentials.consents import Page, PendingConsent
from interlock.credentials.errors import Unobtainable
from interlock.credentials.service import CredentialService
from interlock.drivers.protocol.server_name import server_name
from interlock.fronts.audience import Audience
from interlock.operator.operations.links import Keepers, find_keeper


class ConsentOperations:
    def __init__(
        self, keepers: Keepers, credentials: CredentialService, audience: Audience, recorder: Recorder, clock: Clock
    ) -> None:
        self._keepers = keepers
        self._credentials = credentials
        self._audience = audience
        self._recorder = recorder
        self._clock = clock

    async def authorize(self, segment: str) -> Consent:
        """The page on which a person agrees to a token for this server. Raises NotFound, Refused."""
        holder = find_keeper(self._keepers, segment).holder
        if holder is None:
            raise Refused("no_oauth", f"{segment} is reached without OAuth", {"segment": segment})
        try:
            consent = await holder.consent(anew=True)
        except Unobtainable as error:
            raise Refused("auth_failed", str(error), {"segment": segment}) from None
        left_s = consent.expires_at - self._clock.now()
        return Consent(
            segment=segment,
            url=consent.url,
            issuer=consent.issuer,
            scopes=tuple(consent.scopes),
            expires_at=rfc3339(self._clock.wall() + left_s),
        )

    async def take_return(self, parameters: list[tuple[str, str]]) -> Page:
        """What a browser brought back from such a page; gives the status, title and text to show.

        The state in the parameters is the only credential.
        """
        page, pending = await self._credentials.finish_consent(parameters)
        if pending is not None:
            self._on_consented(pending)
        return page

    def _on_consented(self, pending: PendingConsent) -> None:
        """Records the consent, and tells a client that sent the person to the page."""
        holder = pending.requester
        who = holder.principal or "operator"
        at = self._clock.wall()
        self._recorder.add(
            (at, who, "oauth", "oauth/consent", server_name(holder.segment), None, "admitted", "ok", 0.0, None)
        )
        if holder.principal:
            self._audience.page_visited(holder.principal, pending.consent.id)
