"""How every Chromium is started, whoever starts it: what it may reach, and what it gets to know."""

import os
from pathlib import Path

from outrider.core.processes import plain_variables

NOWHERE = "http://127.0.0.1:1"
"""The proxy of everything that brings none of its own: nobody listens there."""

NOTHING = Path(__file__).parent / "nothing"
"""Programs that do nothing, found before the desktop's, which Chromium would run for a link to a mail address."""

NETWORK = (
    # Names are resolved by the proxy, never by the browser, not even to look ahead.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--dns-prefetch-disable",
    # What speaks UDP would go past a proxy.
    "--disable-quic",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",  # the same in older versions
    "--disable-domain-reliability",
    "--no-pings",
    "--autofill-server-url=data:,",  # else it asks a server about the fields of every form
)
"""Nothing goes past the proxy."""

_FEATURES_OFF = (
    "AimEnabled",
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsUpgrades",
    "HttpsFirstBalancedModeAutoEnable",
    "LensOverlay",
    "MediaRouter",
    "NetworkTimeServiceQuerying",
    "OptimizationHints",
    "PaintHolding",
    "PreconnectToSearch",
    "ThirdPartyStoragePartitioning",
)

_QUIET = (
    *("--no-first-run", "--no-default-browser-check", "--no-service-autorun", "--no-startup-window", "--mute-audio"),
    *("--disable-field-trial-config", "--disable-background-networking", "--disable-component-update"),
    *("--disable-component-extensions-with-background-pages", "--disable-default-apps", "--disable-extensions"),
    *("--disable-sync", "--disable-breakpad", "--disable-dev-shm-usage", "--metrics-recording-only"),
    *("--disable-background-timer-throttling", "--disable-backgrounding-occluded-windows"),
    *("--disable-renderer-backgrounding", "--disable-back-forward-cache", "--disable-hang-monitor"),
    *("--disable-ipc-flooding-protection", "--disable-popup-blocking", "--disable-prompt-on-repost"),
    *("--disable-search-engine-choice-screen", "--allow-pre-commit-input", "--force-color-profile=srgb"),
    *("--password-store=basic", "--use-mock-keychain", "--enable-unsafe-swiftshader"),
    f"--disable-features={','.join(_FEATURES_OFF)}",
    "--enable-features=SkipListAccountsWithoutGaiaCookies",
)
"""It does nothing that nobody asked for. Those that Playwright starts get the same from it."""

_HEADLESS = (
    "--headless",
    "--hide-scrollbars",
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4",
)


def has_sandbox() -> bool:
    """Whether Chromium can have its own: it refuses to as root."""
    return os.geteuid() != 0


def all_flags(*, size: tuple[int, int], headless: bool) -> tuple[str, ...]:
    """For a Chromium that we start ourselves and speak with through two descriptors."""
    return (
        *_QUIET,
        *(_HEADLESS if headless else ()),
        *(() if has_sandbox() else ("--no-sandbox",)),
        f"--window-size={size[0]},{size[1]}",
        f"--proxy-server={NOWHERE}",
        "--proxy-bypass-list=<-loopback>",
        *NETWORK,
        "--remote-debugging-pipe",
    )


def environment() -> dict[str, str]:
    """The variables that Chromium gets. The keys of models are not among them."""
    return {**plain_variables(), "PATH": f"{NOTHING}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
