// The page behind a login link: the ticket becomes a session.
(() => {
  const told = document.getElementById("told");
  const ticket = location.hash.slice(1);
  if (!ticket) {
    told.textContent = "Run interlock open where the node is: it opens this page with a link that logs you in.";
    return;
  }
  history.replaceState(null, "", location.pathname);
  fetch(location.pathname, {
    method: "POST",
    headers: { Accept: "application/json", "Content-Type": "application/json" },
    body: JSON.stringify({ ticket }),
  }).then(async (answer) => {
    const said = await answer.json();
    if (!answer.ok) throw new Error(said.message);
    localStorage.setItem("interlock-session", said.key); // of this origin alone, where a cookie goes to every port
    location.replace("/");
  }).catch((error) => { told.textContent = "You are not logged in: " + error.message + "."; });
})();
