"""The half of the authorization server that people and clients go to: agreeing, registering, tokens, refreshing.

Whoever opens /authorize agrees at once, as the user that the header x-user names. Everything can be made to go wrong,
see `Flows`; and everything that was asked is remembered, see `Flows.seen`.
"""

import base64
import hashlib
import json
import secrets
import time
from typing import Any
from urllib.parse import unquote_plus, urlencode

import jwt
from tests.servers.minting import b64

Form = dict[str, str]
Answer = tuple[int, Any]
ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


class Refused(Exception):
    def __init__(self, error: str, status: int = 400) -> None:
        super().__init__(error)
        self.error, self.status = error, status


class Flows:
    # What a test may change by {"do": "flows", NAME: value}.
    expires_in: Any = 300
    gives_refresh = True
    rotates = True
    iss: str | None = "own"  # what comes back with the code; None: nothing
    denies: str | None = None  # an error instead of a code
    token_error: str | None = None
    token_status = 400
    answer: dict[str, Any] | None = None  # members of every token answer, put over the usual ones
    grants: list[str] | None = None  # the scopes given, whatever was asked for
    registered: dict[str, Any] | None = None  # members of every registration, put over the usual ones
    register_status = 201
    knows_everybody = True  # clients nobody registered may come too

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.clients: dict[str, dict[str, Any]] = {}
        self.codes: dict[str, dict[str, Any]] = {}
        self.refreshes: dict[str, dict[str, Any]] = {}
        self.tokens: dict[str, dict[str, Any]] = {}
        self.seen: dict[str, list[Any]] = {"authorize": [], "register": [], "token": []}

    def authorize(self, asked: Form, user: str) -> str:
        """The URL that the browser is sent back to."""
        self.seen["authorize"].append(asked)
        code = f"marker-code-{secrets.token_urlsafe(16)}"
        back: dict[str, str] = {"state": asked["state"]}
        if self.denies is not None:
            back["error"] = self.denies
        else:
            assert asked["response_type"] == "code" and asked["code_challenge_method"] == "S256"
            self.codes[code] = {**asked, "user": user}
            back["code"] = code
        if self.iss is not None:
            back["iss"] = self.issuer if self.iss == "own" else self.iss
        return f"{asked['redirect_uri']}?{urlencode(back)}"

    def register(self, body: bytes) -> Answer:
        asked = json.loads(body)
        self.seen["register"].append(asked)
        if self.register_status != 201:
            return self.register_status, {"error": "invalid_redirect_uri"}
        client_id = f"registered-{len(self.clients)}"
        made = {"client_id": client_id, "token_endpoint_auth_method": asked["token_endpoint_auth_method"]}
        if asked["token_endpoint_auth_method"] != "none":
            made["client_secret"] = f"marker-secret-{client_id}"
        self.clients[client_id] = {"secret": made.get("client_secret"), "redirect_uris": asked["redirect_uris"]}
        return 201, {**made, **(self.registered or {})}

    def token(self, form: Form, authorization: str) -> Answer:
        try:
            client_id = self._client(form, authorization)
            self.seen["token"].append({**form, "client": client_id})
            if self.token_error is not None:
                raise Refused(self.token_error, self.token_status)
            return 200, {**self._grant(form, client_id), **(self.answer or {})}
        except Refused as refused:
            # Some servers repeat what they were sent; nothing of it may reach a log.
            return refused.status, {"error": refused.error, "error_description": f"not with {json.dumps(form)}"}

    def _client(self, form: Form, authorization: str) -> str:
        client_id, secret = form.get("client_id", ""), form.get("client_secret")
        if authorization.startswith("Basic "):
            pair = base64.b64decode(authorization.removeprefix("Basic ")).decode()
            client_id, secret = map(unquote_plus, pair.split(":", 1))
        known = self.clients.get(client_id)
        if known is None:
            if self.knows_everybody:
                return client_id
            raise Refused("invalid_client", 401)
        if "jwk" in known:
            if form.get("client_assertion_type") != ASSERTION:
                raise Refused("invalid_client", 401)
            try:
                claims = jwt.decode(
                    form["client_assertion"], jwt.PyJWK(known["jwk"]), [known["jwk"]["alg"]], audience=self.issuer
                )
            except jwt.InvalidTokenError:
                raise Refused("invalid_client", 401) from None
            if (claims["iss"], claims["sub"]) != (client_id, client_id) or claims["exp"] - claims["iat"] > 300:
                raise Refused("invalid_client", 401)
        elif known["secret"] != secret:
            raise Refused("invalid_client", 401)
        return client_id

    def _grant(self, form: Form, client_id: str) -> dict[str, Any]:
        kind, resource = form["grant_type"], form.get("resource")
        if kind == "client_credentials":
            return self._issue({"sub": client_id, "client": client_id}, form.get("scope", ""), resource, False)
        if kind == "authorization_code":
            code = self.codes.pop(form.get("code", ""), None)
            if code is None or code["client_id"] != client_id or code["redirect_uri"] != form["redirect_uri"]:
                raise Refused("invalid_grant")
            digest = b64(hashlib.sha256(form["code_verifier"].encode()).digest())
            if digest != code["code_challenge"] or code["resource"] != resource:
                raise Refused("invalid_grant")
            who = {"sub": code["user"], "client": client_id}
            return self._issue(who, code.get("scope", ""), resource, self.gives_refresh)
        if kind == "refresh_token":
            old = self.refreshes.pop(form["refresh_token"], None)
            if old is None or old["client"] != client_id or old["resource"] != resource:
                raise Refused("invalid_grant")
            if not self.rotates:
                self.refreshes[form["refresh_token"]] = old
            return self._issue(old, old["scope"], resource, self.rotates)
        raise Refused("unsupported_grant_type")

    def _issue(self, who: dict[str, Any], scope: str, resource: str | None, refresh: bool) -> dict[str, Any]:
        given = scope if self.grants is None else " ".join(self.grants)
        what = {"sub": who["sub"], "client": who["client"], "scope": given, "resource": resource}
        access = f"marker-access-{secrets.token_urlsafe(16)}"
        ends = time.time() + (self.expires_in if isinstance(self.expires_in, int | float) else 3600)
        self.tokens[access] = {**what, "ends": ends}
        made = {"access_token": access, "token_type": "Bearer", "expires_in": self.expires_in, "scope": given}
        if refresh:
            made["refresh_token"] = f"marker-refresh-{secrets.token_urlsafe(16)}"
            self.refreshes[made["refresh_token"]] = {**what, "scope": scope}
        return {name: value for name, value in made.items() if value is not None}

    # What the guarded servers ask

    def judge(self, token: str) -> dict[str, Any] | None:
        known = self.tokens.get(token)
        return known if known is not None and known["ends"] > time.time() else None
