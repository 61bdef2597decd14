// The page on which a person makes a passkey.
import { bytes, text } from "/console/webauthn.js";

(() => {
  const page = document.getElementById("invitation");
  const told = document.getElementById("told");
  const button = document.getElementById("make");
  const say = (words) => { told.textContent = words; };

  const make = async () => {
    const asked = JSON.parse(page.dataset.asked);
    const made = await navigator.credentials.create({
      publicKey: {
        challenge: bytes(asked.challenge),
        rp: { id: asked.rpId, name: "Interlock" },
        user: { id: bytes(asked.user), name: asked.name, displayName: asked.name },
        pubKeyCredParams: asked.algorithms.map((alg) => ({ type: "public-key", alg })),
        excludeCredentials: asked.exclude.map((id) => ({ type: "public-key", id: bytes(id) })),
        authenticatorSelection: { userVerification: "required", residentKey: "preferred" },
        attestation: "none",
        timeout: asked.timeout,
      },
    });
    const answer = await fetch(location.pathname, {
      method: "POST",
      headers: { Accept: "application/json", "Content-Type": "application/json" },
      body: JSON.stringify({
        client_data: text(made.response.clientDataJSON),
        attestation: text(made.response.attestationObject),
      }),
    });
    const said = await answer.json();
    if (!answer.ok) throw new Error(said.message);
    location.replace(location.pathname);
  };

  const here = location.origin === page.dataset.origin;
  button.hidden = !here;
  document.getElementById("elsewhere").hidden = here;
  if (here && !window.PublicKeyCredential) {
    button.disabled = true;
    say("This browser cannot make passkeys on this page.");
  }
  button.addEventListener("click", async () => {
    button.disabled = true;
    say("Your browser asks where the passkey is to be kept.");
    try {
      await make();
    } catch (error) {
      button.disabled = false;
      const words = {
        NotAllowedError: "No passkey was made: it was not confirmed, or took too long.",
        InvalidStateError: "No passkey was made: this device holds one that the node knows already.",
      };
      say(words[error.name] || "No passkey was made: " + error.message);
    }
  });
})();
