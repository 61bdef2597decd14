// Passkeys: bytes as base64url, as WebAuthn and the operator API exchange them, and a signature.
export const bytes = (text) => Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0));
export const text = (buffer) => btoa(String.fromCharCode(...new Uint8Array(buffer)))
  .replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");

/** What a passkey of this device signs, as the operator API takes it. */
export async function asserted(asked) {
  const made = await navigator.credentials.get({
    publicKey: {
      challenge: bytes(asked.challenge),
      rpId: asked.rpId,
      allowCredentials: asked.credentials.map((id) => ({ type: "public-key", id: bytes(id) })),
      userVerification: "required",
      timeout: asked.timeout,
    },
  });
  const answer = made.response;
  return [made.rawId, answer.clientDataJSON, answer.authenticatorData, answer.signature].map(text).join(".");
}
