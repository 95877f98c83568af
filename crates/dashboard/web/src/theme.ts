// Light or dark: as the system has it, unless somebody chose.

export type Theme = "system" | "light" | "dark";

const KEY = "fonn.theme";
const ORDER: readonly Theme[] = ["system", "light", "dark"];

export const THEME_WORDS: Record<Theme, string> = {
  system: "Auto",
  light: "Light",
  dark: "Dark",
};

export function theme(): Theme {
  const chosen = localStorage.getItem(KEY);
  return ORDER.find((it) => it === chosen) ?? "system";
}

export function nextTheme(): Theme {
  return ORDER[(ORDER.indexOf(theme()) + 1) % ORDER.length] ?? "system";
}

export function applyTheme(chosen: Theme): void {
  localStorage.setItem(KEY, chosen);
  if (chosen === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = chosen;
}
