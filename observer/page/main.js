/*
 * The frame: which page is shown, keys, the banner of what can't be reached, signing in.
 */
'use strict';

const SIGN_IN_SECONDS = 3;
const SIGN_IN_SECONDS_MAX = 60;
const LINK_OVER = 'This link was used, or is older than a minute: `cairn open` makes another.';

const ROUTES = [
    {pattern: /^#\/jobs$/, view: jobsView, section: 'jobs'},
    {pattern: /^#\/jobs\/([^/]+)(?:\/([a-z]+))?$/, view: jobView, section: 'jobs'},
    {pattern: /^#\/compare\/([^/]+)$/, view: compareView, section: 'jobs'},
    {pattern: /^#\/nodes$/, view: nodesView, section: 'nodes'},
    {pattern: /^#\/system$/, view: systemView, section: 'system'},
];

const frame = {
    main: document.getElementById('main'),
    banner: document.getElementById('banner'),
    link: document.getElementById('link'),
    cluster: document.getElementById('cluster'),
    refusal: document.getElementById('refusal'),
    askedAt: 0, /* when who isn't let in was asked for last, and how often it was */
    refused: 0,
    view: null,
    holdings: new Holdings(),
};

/* ---- which page ---- */

function go(hash) {
    location.hash = hash;
}

function decoded(part) {
    try {
        return part && decodeURIComponent(part);
    } catch (_) {
        return part;
    }
}

function showRoute() {
    const hash = location.hash || '#/jobs';
    const route = ROUTES.find(({pattern}) => pattern.test(hash));
    if (!route) {
        location.replace('#/jobs');
        return;
    }
    const [id, tab] = route.pattern.exec(hash).slice(1).map(decoded);
    document.querySelectorAll('nav.sections a').forEach((link) => {
        const here = link.getAttribute('href') === `#/${route.section}`;
        setAttribute(link, 'aria-current', here ? 'page' : 'false');
    });
    if (frame.view instanceof JobPage && route.view === jobView && frame.view.id === id) {
        frame.view.choose(tab); /* another part of the same job */
        return;
    }
    frame.holdings.close();
    frame.holdings = new Holdings();
    frame.view = route.view(frame.holdings, id, tab);
    frame.main.replaceChildren(frame.view.element);
    document.title = `${frame.view.title} · Cairn`;
    scrollTo(0, 0);
    frame.main.focus({preventScroll: true});
}

/* ---- what can't be reached ---- */

function showConnection() {
    const {signedOut, serverAway, coordinatorAway} = store;
    const away = serverAway !== null || coordinatorAway !== null;
    const heard = formatTime(new Date(store.heard).toISOString());
    const missed = serverAway !== null ? "This page's server can't be reached; trying again"
        : `The coordinator can't be reached: ${coordinatorAway}. Workers go on without it`;
    setText(frame.banner, away ? `${missed}. What is shown is from ${heard}.` : '');
    setShown(frame.banner, away && !signedOut);
    frame.link.className = `link ${away || signedOut ? 'bad' : 'good'}`;
    setText(frame.link.lastElementChild,
        signedOut ? 'signed out' : away ? 'not connected' : 'live');
    document.getElementById('sign-in').hidden = !signedOut;
    document.querySelector('nav.sections').hidden = signedOut;
    const over = location.pathname === '/open';
    frame.refusal.replaceChildren(...prose(over ? LINK_OVER : store.refusal));
    frame.main.hidden = signedOut;
}

function showSession() {
    const {cluster, actor, role} = store.session;
    if (location.pathname !== '/') { /* a link that is over, of who is in already */
        history.replaceState(null, '', `/${location.hash}`);
    }
    setShown(document.getElementById('sign-out'), actor.includes('/session:'));
    setText(frame.cluster, [cluster, actor && `${actor}${role === 'viewer' ? ', may look' : ''}`]
        .filter(Boolean).join(' · '));
}

/* Somebody may have signed in by now, elsewhere in this browser; the coordinator may be back. Who
 * isn't let in is asked for less and less often. */
async function lookAgain() {
    if (document.hidden) {
        return;
    }
    if (store.signedOut) {
        const waits = Math.min(SIGN_IN_SECONDS_MAX, SIGN_IN_SECONDS * 1.5 ** frame.refused);
        if (Date.now() < frame.askedAt + 1000 * waits) {
            return;
        }
        frame.askedAt = Date.now();
        frame.refused++;
        try {
            await askSession();
            location.reload();
        } catch (_) {
            /* not yet */
        }
    } else if (store.coordinatorAway !== null || store.serverAway !== null) {
        refreshAll();
    }
}

/* ---- keys ---- */

const KEYS = [
    ['j  k  ↓  ↑', 'next row, row before'],
    ['Enter', 'open the row'],
    ['x', 'select the row, to compare'],
    ['c', 'compare what is selected'],
    ['/', 'filter'],
    ['1  2  3', 'jobs, nodes, system'],
    ['[  ]', 'part of a job before, next one'],
    ['?', 'this help'],
    ['Esc', 'leave a dialog or the filter'],
];

/* Keys of one letter are pressed by accident, and by who dictates. */
const keysAreOn = () => localStorage.getItem('cairn-keys') !== 'off';

function makeKeysSwitch() {
    return el('label.check', null, el('input', {
        type: 'checkbox', checked: keysAreOn(),
        onchange: (event) =>
            localStorage.setItem('cairn-keys', event.target.checked ? 'on' : 'off'),
    }), 'Keys of one letter, digit or sign do something');
}

async function signOut() {
    try {
        await act('/sign-out');
        location.reload();
    } catch (refusal) {
        notify(`Sign out: ${refusal.message}`, 'bad');
    }
}

function showHelp() {
    return openDialog({
        title: 'Keys', body: el('div', null, makeKeysSwitch(),
            el('dl.keys', null, KEYS.map(([keys, what]) => el('div', null,
                el('dt', null, keys.split('  ').map((key) => el('kbd', null, key))),
                el('dd', null, what)))),
        el('p.dim', null, 'In a chart: drag to zoom, double click for the whole range. ' +
            'Dashed lines are restarts, diamonds checkpoints, ticks evaluations.')),
    });
}

function stepTab(by) {
    const tabs = [...document.querySelectorAll('[role=tab]')];
    const at = tabs.findIndex((tab) => tab.getAttribute('aria-selected') === 'true');
    if (at >= 0) {
        tabs[(at + by + tabs.length) % tabs.length].click();
    }
}

const KEY_ACTIONS = {
    'j': () => frame.view.table && frame.view.table.move(1),
    'k': () => frame.view.table && frame.view.table.move(-1),
    'c': () => jobList.selection.size > 1 && go(`#/compare/${[...jobList.selection].join(',')}`),
    '/': () => frame.view.filter && frame.view.filter.focus(),
    '?': showHelp,
    '1': () => go('#/jobs'),
    '2': () => go('#/nodes'),
    '3': () => go('#/system'),
    '[': () => stepTab(-1),
    ']': () => stepTab(1),
};

function takeKey(event) {
    const typing = event.target.closest('input, textarea, select, dialog');
    const other = event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented;
    if (typing || other || !keysAreOn()) {
        return;
    }
    const arrows = {ArrowDown: 'j', ArrowUp: 'k'};
    const free = document.activeElement === document.body || document.activeElement === frame.main;
    const key = free && frame.view.table ? arrows[event.key] || event.key : event.key;
    if (Object.hasOwn(KEY_ACTIONS, key)) {
        event.preventDefault();
        KEY_ACTIONS[key]();
    }
}

/* ---- begin ---- */

document.addEventListener('keydown', takeKey);
document.getElementById('help').addEventListener('click', showHelp);
document.getElementById('sign-out').addEventListener('click', signOut);
addEventListener('hashchange', showRoute);
hub.addEventListener('connection', showConnection);
hub.addEventListener('session', showSession);
setInterval(lookAgain, 1000 * SIGN_IN_SECONDS);
followAll();
showConnection();
showRoute();
