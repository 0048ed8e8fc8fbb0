// Exchange a token for a cookie that no script can read.

const form = document.querySelector("form");
const said = document.querySelector("#said");

/** Where the reader wanted to go: an address of this service, whatever else a link may ask for. */
function wanted() {
  try {
    const next = new URL(new URLSearchParams(location.search).get("next") || "/", location.origin);
    return next.origin === location.origin ? next.href : "/";
  } catch {
    return "/";
  }
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  said.textContent = "";
  const body = JSON.stringify({ token: form.token.value.trim() });
  try {
    const response = await fetch("/api/v1/session", { method: "POST", headers: { "Content-Type": "application/json" }, body });
    if (response.ok) location.replace(wanted());
    else said.textContent = response.status === 401 ? "This service does not know that token." : `The service answered ${response.status}.`;
  } catch {
    said.textContent = "The service does not answer.";
  }
});
