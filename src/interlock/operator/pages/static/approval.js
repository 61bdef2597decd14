// The page of one approval: the time that is left, what happens elsewhere, the passkey, and three keys.
import { events, proved } from "/console/api.js";
import { asserted } from "/console/webauthn.js";

(() => {
  const page = document.getElementById("approval");
  const told = document.getElementById("told");
  const button = document.getElementById("passkey");
  const left = document.getElementById("left");
  const again = () => location.replace(location.pathname);
  for (const one of document.querySelectorAll("input[name=session_key]")) one.value = localStorage.getItem("interlock-session") || "";
  const say = (words) => { told.textContent = words; };

  const request = async (form, answers) => {
    const chosen = answers || (form.elements.class && form.elements.class.value);
    const said = chosen ? "?class=" + encodeURIComponent(chosen) : "";
    const answer = await fetch(location.pathname + "/passkey" + said, { headers: proved({ Accept: "application/json" }) });
    const asked = await answer.json();
    if (!answer.ok) throw new Error(asked.message);
    return asked;
  };

  const sign = async (form, answers) => asserted(await request(form, answers));

  const post = async (path, body) => {
    const answer = await fetch(location.pathname + path, {
      method: "POST",
      headers: proved({ Accept: "application/json", "Content-Type": "application/json" }),
      body: JSON.stringify(body),
    });
    const said = await answer.json();
    if (!answer.ok) throw new Error(said.message);
    return said;
  };

  const unlock = async (form, answers) => {
    const passphrase = document.getElementById("passphrase");
    const chosen = answers || (form.elements.class && form.elements.class.value) || null;
    const asked = { passphrase: passphrase.value, key: document.getElementById("key").value, class: chosen };
    passphrase.value = "";
    return (await post("/proof", asked)).proof;
  };

  const approve = async (form) => {
    form.elements.proof.value = await sign(form);
    form.submit();
  };

  const reveal = async (form) => {
    say("Code: " + (await post("/code", { proof: await sign(form, "reveal") })).code);
  };

  const revealing = document.getElementById("reveal");
  if (revealing) {
    revealing.addEventListener("click", async () => {
      say("Your passkey is asked to show the code.");
      try {
        await reveal(revealing.form);
      } catch (error) {
        say("The code is not shown: " + error.message);
      }
    });
  }

  const editing = document.getElementById("edit");
  if (editing) {
    editing.addEventListener("submit", async (event) => {
      event.preventDefault();
      try {
        const written = editing.elements.params.value;
        JSON.parse(written);
        page.dataset.live = ""; // that this one is void now is no reason to stay
        const answer = await fetch(location.pathname + "/edit", { method: "POST", headers: proved({ Accept: "application/json", "Content-Type": "application/json" }), body: '{"params":' + written + "}" });
        const said = await answer.json();
        if (!answer.ok) throw new Error(said.message);
        location.assign("/approvals/" + encodeURIComponent(said.id));
      } catch (error) {
        page.dataset.live = "yes";
        say("Nothing was changed: " + error.message);
      }
    });
  }

  const byKey = document.getElementById("bykey");
  if (byKey) {
    byKey.addEventListener("submit", async (event) => {
      event.preventDefault();
      say("The key is unlocked and signs this very decision.");
      try {
        byKey.elements.proof.value = await unlock(byKey);
        byKey.submit();
      } catch (error) {
        say("Nothing was approved: " + error.message);
      }
    });
  }
  const revealingByKey = document.getElementById("revealbykey");
  if (revealingByKey) {
    revealingByKey.addEventListener("click", async () => {
      try {
        say("Code: " + (await post("/code", { proof: await unlock(byKey, "reveal") })).code);
      } catch (error) {
        say("The code is not shown: " + error.message);
      }
    });
  }

  if (button) {
    const here = location.origin === button.dataset.origin;
    button.form.hidden = !here;
    document.getElementById("elsewhere").hidden = here;
    if (here && !window.PublicKeyCredential) {
      button.disabled = true;
      say("This browser cannot use passkeys on this page.");
    }
    button.addEventListener("click", async () => {
      if (!button.form.reportValidity()) return;
      button.disabled = true;
      say("Your passkey is asked to sign this very call.");
      try {
        await approve(button.form);
      } catch (error) {
        button.disabled = false;
        say(error.name === "NotAllowedError"
          ? "Nothing was approved: the passkey was not used, or this device has none that counts here."
          : "Nothing was approved: " + error.message);
      }
    });
  }

  if (left && left.dataset.left) {
    const end = performance.now() + 1000 * Number(left.dataset.left);
    const tick = () => {
      const seconds = Math.max(0, Math.round((end - performance.now()) / 1000));
      left.textContent = Math.floor(seconds / 60) + ":" + String(seconds % 60).padStart(2, "0") + " left";
      if (seconds > 0) setTimeout(tick, 1000);
    };
    tick();
  }

  const live = document.getElementById("live");
  const count = document.getElementById("waiting");
  const waiting = new Set();
  const look = (one) => {
    if (one.status === "pending") waiting.add(one.id);
    else waiting.delete(one.id);
    count.hidden = waiting.size === 0;
    count.textContent = waiting.size > 99 ? "99+" : String(waiting.size);
    count.setAttribute("aria-label", waiting.size + " waiting");
    if (page.dataset.live && one.id === page.dataset.id && one.status !== page.dataset.status) again();
  };
  const stop = new AbortController();
  const follow = async () => {
    const headers = proved({ Accept: "application/json" });
    const answer = await fetch("/approvals/events", { headers, signal: stop.signal });
    if (!answer.ok) throw new Error("the node does not tell");
    live.dataset.state = "live";
    live.textContent = "Live";
    const now = await fetch(location.pathname, { headers });
    if (now.ok) look(await now.json());
    for await (const data of events(answer)) look(JSON.parse(data));
  };
  const stay = async () => {
    while (!stop.signal.aborted) {
      await follow().catch(() => {});
      if (stop.signal.aborted) return;
      live.dataset.state = "waiting";
      live.textContent = "Reconnecting…";
      waiting.clear();
      await new Promise((again) => setTimeout(again, 2000));
    }
  };
  stay();
  addEventListener("pagehide", () => stop.abort());

  const aims = {
    a: () => document.querySelector("form:not([hidden]) #passkey, #passphrase, form:not([hidden]) button.go, textarea[name=proof]")?.focus(),
    d: () => document.querySelector("input[name=reason]")?.focus(),
    u: () => location.assign("/approvals"),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
    if (aims[event.key]) {
      event.preventDefault();
      aims[event.key]();
    }
  });
})();
