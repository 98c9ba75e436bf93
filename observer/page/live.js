/*
 * The server: questions (ask), streams of what changes (openStream), what all views share (store).
 *
 * A stream that breaks is opened again, later and later up to 15 s. While the page can't be seen,
 * streams rest: a browser has six connections to a server, and each tab would take two of them.
 */
'use strict';

const API = '/api/v1';
const ASK_MS = 15000;
const SAVE_MS = 180000; /* the answer comes with the commit */
const RETRY_MS_MAX = 15000;
const HIDDEN_MS = 10000; /* a glance at another tab closes nothing */
const JOBS_MAX = 2000;

class Refusal extends Error {
    constructor(status, message) {
        super(message);
        this.status = status;
    }
}

/* ---- what is shared ---- */

const store = {
    session: null,      /* {role, actor, cluster} */
    jobs: new Map(),    /* by id */
    jobsTruncated: false,
    jobsKnown: false,
    nodes: null,        /* [Node] */
    signedOut: false,
    refusal: '',        /* why, in the server's words */
    serverAway: null,   /* since when, ms; null: it answers */
    coordinatorAway: null, /* what was said of it; null: it is up */
    heard: Date.now(),  /* of the newest thing that came */
};

const hub = new EventTarget(); /* 'jobs', 'nodes', 'session', 'connection' */

function tell(what) {
    hub.dispatchEvent(new Event(what));
}

function listen(holdings, what, listener) {
    hub.addEventListener(what, listener);
    holdings.add(() => hub.removeEventListener(what, listener));
}

function setConnection(changes) {
    const changed = Object.keys(changes).some((key) => store[key] !== changes[key]);
    Object.assign(store, changes);
    if (changed) {
        tell('connection');
    }
}

const mayAct = () => store.session !== null && store.session.role === 'operator';

/* ---- questions ---- */

async function refusalOf(response) {
    let message = `the server answered ${response.status}`;
    try {
        message = (await response.json()).error || message;
    } catch (_) {
        /* an answer that isn't JSON: its status is all there is */
    }
    return new Refusal(response.status, message);
}

async function send(path, options, ms) {
    let response;
    try {
        response = await fetch(API + path, {
            cache: 'no-store', credentials: 'same-origin', signal: AbortSignal.timeout(ms),
            ...options,
        });
    } catch (problem) {
        throw new Refusal(0, problem.name === 'TimeoutError'
            ? `no answer within ${ms / 1000} s` : "the page's server can't be reached");
    }
    if (!response.ok) {
        const refusal = await refusalOf(response);
        if (response.status === 401) {
            setConnection({signedOut: true, refusal: refusal.message});
        }
        throw refusal;
    }
    setConnection({signedOut: false, refusal: '', serverAway: null});
    return response.json();
}

const ask = (path) => send(path, {}, ASK_MS);

/* Who looks. Whoever may not even ask that isn't let in, as with a certificate of a node. */
async function askSession() {
    try {
        return await ask('/session');
    } catch (refusal) {
        if (refusal.status >= 400 && refusal.status < 500) {
            setConnection({signedOut: true, refusal: refusal.message});
        }
        throw refusal;
    }
}

/* What changes something; X-Cairn shows that no other page's form sent it. */
function act(path, body) {
    const headers = {'X-Cairn': '1'};
    if (body !== undefined) {
        headers['Content-Type'] = 'application/json';
    }
    return send(path, {method: 'POST', headers, body: body && JSON.stringify(body)},
        path.endsWith('/save') ? SAVE_MS : ASK_MS);
}

const jobPath = (id, rest = '') => `/jobs/${encodeURIComponent(id)}${rest}`;

/* ---- streams ---- */

/* Whether the server is away or wants a sign-in: an EventSource doesn't say. */
async function findOutWhy() {
    try {
        await askSession();
    } catch (refusal) {
        if (refusal.status === 0 && store.serverAway === null) {
            setConnection({serverAway: Date.now()});
        }
    }
}

/*
 * path(): asked anew at each opening; handlers: {event name: f(data)}. opened(again) comes before
 * any event. Returns a function that closes it.
 */
function openStream(path, handlers, opened = () => {}) {
    let source = null;
    let timer = 0;
    let failures = 0;
    let closed = false;

    const rest = () => {
        clearTimeout(timer);
        if (source !== null) {
            source.close();
            source = null;
        }
    };
    const close = () => {
        closed = true;
        rest();
        document.removeEventListener('visibilitychange', look);
    };
    const retry = () => {
        rest();
        const wait = Math.min(RETRY_MS_MAX, 500 * 2 ** failures) * (0.75 + Math.random() / 2);
        failures++;
        timer = setTimeout(open, wait);
        findOutWhy();
    };
    const take = (name, event) => {
        failures = 0;
        store.heard = Date.now();
        setConnection({serverAway: null});
        if (name === 'over') {
            close();
        }
        handlers[name](event.data ? JSON.parse(event.data) : {});
    };
    function open() {
        rest();
        if (closed || (document.hidden && failures > 0)) {
            return;
        }
        const again = failures > 0;
        source = new EventSource(API + path());
        source.onopen = () => {
            failures = 0;
            setConnection({serverAway: null, signedOut: false});
            opened(again);
        };
        source.onerror = retry;
        Object.keys(handlers).forEach((name) =>
            source.addEventListener(name, (event) => take(name, event)));
    }
    function look() {
        clearTimeout(timer);
        if (document.hidden) {
            timer = setTimeout(() => {
                rest();
                failures = 1; /* the next opening is one "again" */
            }, HIDDEN_MS);
        } else if (source === null) {
            open();
        }
    }

    document.addEventListener('visibilitychange', look);
    open();
    return close;
}

/* ---- jobs and nodes ---- */

/* Newest first; the oldest go where there are too many. */
function takeJobs(reply, whole) {
    if (whole) {
        store.jobs.clear();
        store.jobsTruncated = Boolean(reply.truncated);
    }
    (reply.jobs || []).forEach((job) => store.jobs.set(job.id, job));
    if (store.jobs.size > JOBS_MAX) {
        const kept = newestFirst([...store.jobs.values()]).slice(0, JOBS_MAX);
        store.jobs = new Map(kept.map((job) => [job.id, job]));
        store.jobsTruncated = true;
    }
    store.jobsKnown = true;
    tell('jobs');
}

function newestFirst(jobs) {
    return jobs.sort((a, b) => (a.submitted_at < b.submitted_at ? 1 : -1));
}

async function refreshAll() {
    try {
        store.session = await askSession();
        tell('session');
        takeJobs(await ask('/jobs'), true);
        store.nodes = (await ask('/nodes')).nodes || [];
        tell('nodes');
        setConnection({coordinatorAway: null});
    } catch (refusal) {
        if (refusal.status >= 500) {
            setConnection({coordinatorAway: refusal.message});
        } else if (refusal.status === 0 && store.serverAway === null) {
            setConnection({serverAway: Date.now()});
        }
    }
}

function followAll() {
    refreshAll();
    openStream(() => '/live', {
        jobs: (reply) => {
            setConnection({coordinatorAway: null});
            takeJobs(reply, false);
        },
        nodes: (reply) => {
            setConnection({coordinatorAway: null});
            store.nodes = reply.nodes || [];
            tell('nodes');
        },
        down: (reply) => setConnection({coordinatorAway: reply.error || 'it does not answer'}),
    }, (again) => {
        if (again) {
            refreshAll();
        }
    });
}
