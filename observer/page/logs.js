/*
 * The logs of a job's workers as they come: a line is a JSON object (time, level, rank, message),
 * or whatever else a worker wrote, which counts as an error of the time of the line before it.
 */
'use strict';

const LOG_LINES_MAX = 2000;
const LOG_REDRAW_MS = 300;
const LEVELS = ['debug', 'info', 'warn', 'error'];

/* {time, level, rank, text} of a line as it came; before: the time of the rank's line before it. */
function readLine({rank, line}, before) {
    let entry = null;
    try {
        entry = line.startsWith('{') ? JSON.parse(line) : null;
    } catch (_) {
        /* something that begins like one: shown as it is */
    }
    if (entry === null || typeof entry.msg !== 'string') {
        return {time: before || '', level: 'error', rank, text: line.trimEnd()};
    }
    const level = LEVELS.includes(entry.level) ? entry.level : 'info';
    return {time: String(entry.ts || ''), level, rank, text: entry.msg};
}

class LogLines {
    constructor() {
        this.lines = [];       /* by time */
        this.times = new Map(); /* of each rank's newest line */
        this.cut = 0;          /* that were there and are no more */
    }

    /* Ranks come one after another at first. */
    take(raw) {
        raw.forEach((one) => {
            const line = readLine(one, this.times.get(one.rank));
            this.times.set(one.rank, line.time);
            this.lines.push(line);
        });
        this.lines.sort((a, b) => (a.time < b.time ? -1 : Number(a.time > b.time)));
        const over = this.lines.length - LOG_LINES_MAX;
        if (over > 0) {
            this.lines.splice(0, over);
            this.cut += over;
        }
    }

    wanted({level, text}) {
        const least = LEVELS.indexOf(level);
        return this.lines.filter((line) => LEVELS.indexOf(line.level) >= least &&
            (text === '' || line.text.toLowerCase().includes(text)));
    }
}

function logLine(line) {
    return el(`div.line.${line.level}`, null,
        el('time', {datetime: line.time, title: line.time}, formatTime(line.time, true)),
        el('span.level', null, line.level), el('span.rank', null, `r${line.rank}`),
        el('span.text', null, line.text));
}

function choice(label, options, chosen, changed) {
    const option = ([value, title]) => el('option', {value, selected: value === chosen}, title);
    return el('label.check', null, label,
        el('select', {onchange: (event) => changed(event.target.value)}, options.map(option)));
}

/* Lines that are shown stay; only what is new is added, unless the filter is another one. */
class LogView {
    constructor() {
        this.filter = {level: 'debug', text: ''};
        this.logs = new LogLines();
        this.followed = true;
        this.box = el('div.log',
            {tabindex: 0, role: 'log', 'aria-live': 'off', 'aria-label': 'Log lines'});
        this.note = el('p.dim.small');
        this.redraw = braked(() => this.draw(), LOG_REDRAW_MS);
        this.shown = [];
        this.box.addEventListener('scroll', () => {
            const {scrollTop, scrollHeight, clientHeight} = this.box;
            this.followed = scrollHeight - scrollTop - clientHeight < 30;
        });
    }

    clear() {
        this.logs = new LogLines();
        this.redraw();
    }

    set(changes) {
        Object.assign(this.filter, changes);
        this.redraw();
    }

    draw() {
        const wanted = this.logs.wanted(this.filter);
        const first = this.shown.indexOf(wanted[0]);
        const goes = first >= 0 && wanted.length >= this.shown.length - first &&
            this.shown[this.shown.length - 1] === wanted[this.shown.length - first - 1];
        if (goes) {
            for (let at = 0; at < first; at++) {
                this.box.firstElementChild.remove();
            }
            this.box.append(...wanted.slice(this.shown.length - first).map(logLine));
        } else {
            this.box.replaceChildren(...wanted.map(logLine));
        }
        this.shown = wanted;
        if (this.followed) {
            this.box.scrollTop = this.box.scrollHeight;
        }
        this.note.replaceChildren(...prose(plural(wanted.length, 'line') + (this.logs.cut > 0
            ? `; ${formatCount(this.logs.cut)} older ones: \`cairn logs\`` : '')));
    }
}

function logsTab(page, holdings) {
    const view = new LogView();
    let rank = '';
    let attempt = '';
    let close = () => {};
    const open = () => {
        close();
        view.clear();
        const query = new URLSearchParams({follow: '1'});
        if (rank !== '') {
            query.set('rank', rank);
        }
        if (attempt !== '') {
            query.set('attempt', attempt);
        }
        close = openStream(() => jobPath(page.id, `/logs?${query}`), {
            lines: (lines) => {
                view.logs.take(Array.isArray(lines) ? lines : []);
                view.redraw();
            },
            over: () => view.redraw(),
        }, (again) => again && view.clear()); /* it begins anew */
    };
    const filter = makeFilter('Filter log', '', (text) => view.set({text: text.toLowerCase()}));
    const levels = choice('level', LEVELS.map((level) => [level, level === 'debug' ? 'all'
        : `${level}${level === 'error' ? '' : ' and up'}`]), 'debug', (level) => view.set({level}));
    const choices = el('span.choices');
    const update = () => {
        const job = page.job;
        const count = Math.max(job.workers_count || 0,
            ...(job.workers || []).map((one) => one.rank + 1));
        const text = `${count} ${job.generation}`;
        if (choices.shownText === text) {
            return;
        }
        choices.shownText = text;
        const pairs = (length, first, by) => Array.from({length}, (_, at) =>
            [String(first + by * at), String(first + by * at)]);
        const ranks = [['', 'all'], ...pairs(Math.min(count, 1024), 0, 1)];
        const newest = job.generation || 1;
        const attempts = [['', 'newest'], ...pairs(Math.min(newest, 100), newest, -1)];
        choices.replaceChildren(choice('rank', ranks, rank, (value) => {
            rank = value;
            open();
        }), choice('generation', attempts, attempt, (value) => {
            attempt = value;
            open();
        }));
    };
    holdings.add(() => {
        close();
        view.redraw.stop();
    });
    open();
    return {update, filter,
        element: el('div.view', null,
            el('div.toolbar', null, levels, choices, el('span.gap'), filter), view.box, view.note)};
}
