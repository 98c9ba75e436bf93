/*
 * What every part of the page stands on: elements, numbers and times as people read them, the words
 * of states, a brake for redraws.
 *
 * Whatever comes from a server goes in as text (el, setText), never as markup.
 */
'use strict';

/* ---- elements ---- */

/* The class names of 'td.number.dim', and its tag. */
function parseKind(kind) {
    const [tag, ...classes] = kind.split('.');
    return {tag: tag || 'div', className: classes.join(' ')};
}

function setProperty(node, name, value) {
    if (name.startsWith('on')) {
        node.addEventListener(name.slice(2), value);
    } else if (name === 'style') {
        Object.entries(value).forEach(([key, text]) => node.style.setProperty(key, text));
    } else if (value === true) {
        node.setAttribute(name, '');
    } else if (value !== false && value != null) {
        node.setAttribute(name, String(value));
    }
}

function fill(node, props, children) {
    Object.entries(props || {}).forEach(([name, value]) => setProperty(node, name, value));
    node.append(...children.flat(2).filter((child) => child != null && child !== false));
    return node;
}

/* el('button.quiet', {onclick: f}, 'Save', el('kbd', null, 's')) */
function el(kind, props, ...children) {
    const {tag, className} = parseKind(kind);
    const node = document.createElement(tag);
    if (className) {
        node.className = className;
    }
    return fill(node, props, children);
}

function svg(tag, props, ...children) {
    return fill(document.createElementNS('http://www.w3.org/2000/svg', tag), props, children);
}

/* Touches the document only where something is new: live pages redraw often. */
function setText(node, text) {
    if (node.textContent !== text) {
        node.textContent = text;
    }
}

function setShown(node, shown) {
    if (node.hidden === shown) {
        node.hidden = !shown;
    }
}

function setAttribute(node, name, value) {
    if (node.getAttribute(name) !== value) {
        node.setAttribute(name, value);
    }
}

/* Words in which `this` is code. */
function prose(text) {
    return text.split('`').map((part, at) => (at % 2 === 1 ? el('code', null, part) : part));
}

/* An own wrapper for what may be wider than a phone. */
function scroller(label, ...children) {
    return el('div.scroller', {tabindex: 0, role: 'region', 'aria-label': label}, ...children);
}

/* ---- numbers ---- */

const NOTHING = '–';

const isNumber = (value) => typeof value === 'number' && Number.isFinite(value);

const grouped = new Intl.NumberFormat('en-US', {maximumFractionDigits: 0});

function formatCount(value) {
    return isNumber(value) ? grouped.format(value) : NOTHING;
}

/* As %.4g writes it, but for thousands. */
function formatNumber(value, digits = 4) {
    if (!isNumber(value)) {
        return NOTHING;
    }
    const size = Math.abs(value);
    if (size >= 10 ** (digits - 1) && size < 1e9) {
        return grouped.format(value);
    }
    if (size !== 0 && (size < 1e-4 || size >= 1e9)) {
        return value.toExponential(Math.min(digits - 1, 2)).replace('e+', 'e');
    }
    return String(Number(value.toPrecision(digits)));
}

function formatPercent(part, digits = 0) {
    return isNumber(part) ? `${(100 * part).toFixed(digits)} %` : NOTHING;
}

/* As exact as the number: 90.7 %, 0.25 %. */
function formatShare(part, digits = 4) {
    return isNumber(part) ? `${Number((100 * part).toPrecision(digits))} %` : NOTHING;
}

function formatBytes(bytes) {
    if (!isNumber(bytes)) {
        return NOTHING;
    }
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
    let unit = 0;
    while (bytes >= 1023.95 && unit + 1 < units.length) {
        bytes /= 1024;
        unit++;
    }
    return `${unit === 0 ? bytes : bytes.toFixed(1)} ${units[unit]}`;
}

/* 107.5 GFLOP; with a unit behind it: 1.2 TFLOP/s */
function formatFlops(flops) {
    if (!isNumber(flops)) {
        return NOTHING;
    }
    const units = ['MFLOP', 'GFLOP', 'TFLOP', 'PFLOP'];
    const at = flops < 1e9 ? 0 : flops < 1e12 ? 1 : flops < 1e15 ? 2 : 3;
    return `${formatNumber(flops / 10 ** (6 + 3 * at))} ${units[at]}`;
}

/* 850 ms, 4.2 s, 3 min 12 s, 2 h 05 min, 3 d 4 h */
function formatSeconds(seconds) {
    if (!isNumber(seconds)) {
        return NOTHING;
    }
    if (seconds < 1) {
        return seconds === 0 ? '0 s' : `${formatNumber(1000 * seconds, 3)} ms`;
    }
    if (seconds < 59.5) {
        return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
    }
    const whole = Math.round(seconds);
    const two = (value) => String(value).padStart(2, '0');
    if (whole < 3600) {
        return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
    }
    const minutes = Math.round(seconds / 60);
    if (minutes < 48 * 60) {
        return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
    }
    const hours = Math.round(seconds / 3600);
    return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/* ---- times ---- */

/* Of RFC 3339; null where there is none. */
function millisecondsOf(time) {
    const ms = time ? Date.parse(time) : NaN;
    return Number.isNaN(ms) ? null : ms;
}

function secondsBetween(begin, end) {
    const from = millisecondsOf(begin);
    const to = end ? millisecondsOf(end) : Date.now();
    return from === null || to === null ? null : Math.max(0, (to - from) / 1000);
}

/* The first unit alone: what is old needs no seconds. */
function formatAge(time) {
    const seconds = secondsBetween(time);
    if (seconds === null) {
        return NOTHING;
    }
    const units = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
    const [size, unit] = units.find(([least]) => seconds >= least) || [1, 's'];
    return `${Math.floor(seconds / size)} ${unit}`;
}

/* The clock of who looks on; with the date where it isn't today. */
function formatTime(time, withMilliseconds = false) {
    const ms = millisecondsOf(time);
    if (ms === null) {
        return NOTHING;
    }
    const date = new Date(ms);
    const two = (value) => String(value).padStart(2, '0');
    const clock = [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(':') +
        (withMilliseconds ? `.${String(date.getMilliseconds()).padStart(3, '0')}` : '');
    if (withMilliseconds || date.toDateString() === new Date().toDateString()) {
        return clock;
    }
    return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock}`;
}

function timeElement(time, withMilliseconds) {
    return el('time', {datetime: time, title: time}, formatTime(time, withMilliseconds));
}

/* ---- words ---- */

/* A tone is a colour and a sign: nothing is told by colour alone. */
const TONES = {run: '●', good: '✓', wait: '◌', warn: '▲', bad: '✕', rest: '■'};

const STATE_TONES = {
    QUEUED: 'wait', PLACING: 'wait', FORMING: 'wait', RUNNING: 'run', SAVING: 'run',
    RECOVERING: 'warn', PAUSED: 'rest', SUCCEEDED: 'good', FAILED: 'bad', STOPPED: 'rest',
    KILLED: 'rest',
};
const STATES_OVER = new Set(['SUCCEEDED', 'FAILED', 'STOPPED', 'KILLED']);

const NODE_TONES = {
    ready: 'good', unsupervised: 'warn', draining: 'warn', drained: 'warn', silent: 'warn',
    lost: 'bad', left: 'rest', forgotten: 'rest',
};

const isOver = (job) => STATES_OVER.has(job.state);

/* Health says more than "running" does, where it isn't well. */
function jobTone(job) {
    const tone = STATE_TONES[job.state] || 'wait';
    const unwell = job.health && job.health !== 'ok' && !isOver(job);
    return tone === 'run' && unwell ? 'warn' : tone;
}

function badge(tone, word, title) {
    return el(`span.badge.${tone}`, {title},
        el('span.sign', {'aria-hidden': 'true'}, TONES[tone]), word);
}

function jobWords(job) {
    const unwell = job.health && !['ok', 'recovering'].includes(job.health) && !isOver(job);
    return (job.state || 'unknown').toLowerCase() + (unwell ? `, ${job.health}` : '');
}

function jobBadge(job) {
    return badge(jobTone(job), jobWords(job), job.reason);
}

function plural(count, one, many = `${one}s`) {
    return `${formatCount(count)} ${count === 1 ? one : many}`;
}

const timesText = (count) => (count === 1 ? 'once' : `${formatCount(count)} times`);

function progressOf(job) {
    if (job.state === 'SUCCEEDED') {
        return 1;
    }
    return job.total_steps > 0 ? Math.min(1, job.step / job.total_steps) : null;
}

function stepsText(job) {
    const total = job.total_steps > 0 ? ` of ${formatCount(job.total_steps)}` : '';
    return formatCount(job.step) + total;
}

/* ---- redraws ---- */

/* At most once in so many milliseconds, the newest call last; nothing while nobody can see it. */
function braked(redraw, ms) {
    let waits = false;
    let stopped = false;
    let before = 0;
    const run = () => {
        waits = false;
        before = performance.now();
        if (!stopped) {
            redraw();
        }
    };
    const call = () => {
        if (!waits && !stopped) {
            waits = true;
            const wait = Math.max(0, before + ms - performance.now());
            setTimeout(() => requestAnimationFrame(run), wait);
        }
    };
    call.stop = () => {
        stopped = true;
    };
    return call;
}

/* What a part of the page holds open until its view is left. */
class Holdings {
    constructor() {
        this.releases = [];
        this.closed = false;
    }

    add(release) {
        this.releases.push(release);
    }

    every(seconds, work) {
        const timer = setInterval(work, 1000 * seconds);
        this.add(() => clearInterval(timer));
    }

    close() {
        this.closed = true;
        this.releases.splice(0).forEach((release) => release());
    }
}
