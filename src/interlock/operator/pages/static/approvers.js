// Who may approve: a person makes the first operator key, or adds a passkey with the passphrase of the key.
import { post } from "/console/api.js";
import { bytes, text } from "/console/webauthn.js";

const told = document.getElementById("told");

async function makeKey(form) {
  const { name, passphrase, again, code } = form.elements;
  if (passphrase.value !== again.value) throw new Error("the two passphrases are not the same");
  form.dataset.asked ||= (await post("/admin/approvers", { name: name.value, passphrase: passphrase.value })).id;
  await post("/approvals/" + form.dataset.asked, { decision: "approve", code: code.value });
}

async function makePasskey(form) {
  const { name, passphrase, key } = form.elements;
  form.dataset.asked ||= await askPasskey(name.value);
  const asked = "/approvals/" + form.dataset.asked;
  const signed = await post(asked + "/proof", { key: key.value, passphrase: passphrase.value });
  await post(asked, { decision: "approve", proof: signed.proof });
}

async function askPasskey(name) {
  const { creation, ticket } = await post("/admin/approvers/passkeys", { name });
  const made = await navigator.credentials.create({
    publicKey: {
      challenge: bytes(creation.challenge),
      rp: { id: creation.rpId, name: "Interlock" },
      user: { id: bytes(creation.user), name: creation.name, displayName: creation.name },
      pubKeyCredParams: creation.algorithms.map((alg) => ({ type: "public-key", alg })),
      excludeCredentials: creation.exclude.map((id) => ({ type: "public-key", id: bytes(id) })),
      authenticatorSelection: { userVerification: "required", residentKey: "preferred" },
      attestation: "none",
      timeout: creation.timeout,
    },
  });
  const answer = await post("/admin/approvers/passkeys/" + ticket, {
    client_data: text(made.response.clientDataJSON), attestation: text(made.response.attestationObject),
  });
  return answer.id;
}

function attach(form, act) {
  form?.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("button");
    button.disabled = true;
    told.textContent = "";
    try {
      await act(form);
      location.reload();
    } catch (error) {
      button.disabled = false;
      told.textContent = "No approver was added: " + error.message;
    }
  });
}

attach(document.getElementById("first"), makeKey);
attach(document.getElementById("passkey"), makePasskey);
