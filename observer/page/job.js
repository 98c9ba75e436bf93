/*
 * The page of one job: its head, what people can do to it, its curves; the other tabs are in
 * history.js and logs.js.
 */
'use strict';

const CURVE_POINTS = 1000;
const WHY_SECONDS = 10;

/* ---- what people can do ---- */

const JOB_ACTIONS = [
    {id: 'save', title: 'Save', states: ['RUNNING'],
        text: 'A checkpoint is made of the step it is at; training goes on.',
        tell: (reply) => `saved at step ${formatCount(reply.step)}`},
    {id: 'pause', title: 'Pause', states: ['QUEUED', 'PLACING', 'FORMING', 'RUNNING', 'RECOVERING'],
        text: 'It saves, ends its workers and frees their slots until it is resumed.',
        tell: (reply) => `${reply.name} is ${jobWords(reply)}`},
    {id: 'resume', title: 'Resume', states: ['PAUSED', 'STOPPED'],
        text: 'It takes slots again and goes on from its newest checkpoint.',
        tell: (reply) => `${reply.name} is ${jobWords(reply)}`},
    {id: 'stop', title: 'Stop', danger: true,
        states: ['QUEUED', 'PLACING', 'FORMING', 'RUNNING', 'SAVING', 'RECOVERING', 'PAUSED'],
        text: 'It saves and ends. Its checkpoints stay, and it can be resumed from the newest.',
        tell: (reply) => `${reply.name} is ${jobWords(reply)}`},
];

function actOnJob(job, action) {
    return confirmAndAct({
        dialog: {title: `${action.title} ${job.name}?`, verb: action.title, danger: action.danger,
            body: el('p', null, action.text)},
        perform: () => act(jobPath(job.id, `/${action.id}`)),
        tellResult: action.tell,
    });
}

function drawActions(place, job) {
    const actions = mayAct() ? JOB_ACTIONS.filter((one) => one.states.includes(job.state)) : [];
    const text = actions.map((one) => one.id).join();
    if (place.shownText !== text) {
        place.shownText = text;
        const button = (action) => el(action.danger ? 'button.danger' : 'button', {
            onclick: () => actOnJob(place.job, action),
        }, `${action.title}…`);
        place.replaceChildren(...actions.map(button));
    }
    place.job = job;
}

/* ---- the head ---- */

class JobHead {
    constructor(id) {
        this.badge = el('span');
        this.name = el('h1', null, id);
        this.actions = el('div.actions', {role: 'group', 'aria-label': 'Actions'});
        this.reason = el('p.note.warn', {hidden: true});
        this.bar = progressBar(null, 'progress');
        this.steps = el('b');
        this.left = el('span');
        this.facts = new Facts('figures');
        this.element = el('header.jobhead', null,
            el('div.head', null, this.name, this.badge, el('span.id', null, id), el('span.gap'),
                this.actions),
            this.reason, this.bar, el('p.steps', null, this.steps, this.left), this.facts.element);
    }

    update(job) {
        setText(this.name, job.name);
        const words = jobWords(job);
        if (this.badge.textContent !== TONES[jobTone(job)] + words) {
            this.badge.replaceChildren(jobBadge(job));
        }
        drawActions(this.actions, job);
        setShown(this.reason, Boolean(job.reason));
        setText(this.reason, job.reason || '');
        this.reason.className = `note ${job.state === 'FAILED' ? 'bad' : 'warn'}`;
        const part = progressOf(job);
        setProgress(this.bar, part, jobTone(job));
        setText(this.steps, `step ${stepsText(job)}`);
        setText(this.left, this.leftText(job, part));
        this.facts.set({
            'Loss': formatNumber(job.loss),
            'Evaluation loss': formatNumber(job.eval_loss),
            'Accuracy': formatPercent(job.accuracy, 2),
            'Speed': isNumber(job.throughput)
                ? `${formatNumber(job.throughput)} ${job.throughput_unit || ''}` : '',
            'A step takes': isNumber(job.step_ms) ? formatSeconds(job.step_ms / 1000) : '',
            'Workers': workersText(job),
            'Recoveries': formatCount(job.recovery_count || 0),
            'Goodput': formatPercent(job.goodput, 1),
        });
    }

    leftText(job, part) {
        const took = secondsBetween(job.started_at, job.ended_at);
        const epoch = job.steps_per_epoch > 0
            ? `epoch ${(job.step / job.steps_per_epoch).toFixed(2)}` : '';
        const left = !isOver(job) && isNumber(job.eta_seconds)
            ? `${formatSeconds(job.eta_seconds)} left` : '';
        return [formatPercent(part, 1), epoch, left,
            took === null ? '' : `${isOver(job) ? 'took' : 'for'} ${formatSeconds(took)}`]
            .filter((text) => text !== '' && text !== NOTHING).join(' · ');
    }
}

/* ---- the overview: curves ---- */

const CURVES = [
    {title: 'Loss', log: true, lines: [
        {title: 'training', color: '--c1', smooth: true, value: (point) => point.loss,
            band: (point) => [point.loss_min, point.loss_max]},
        {title: 'evaluation', color: '--c2', dots: true, value: (point) => point.eval_loss}]},
    {title: 'Accuracy', format: formatShare, needs: 'eval_accuracy', lines: [
        {title: 'evaluation', color: '--c2', dots: true, value: (point) => point.eval_accuracy}]},
    {title: 'Speed', unit: 'samples/s', zero: true, lines: [
        {title: 'samples/s', color: '--c3', smooth: true,
            value: (point) => point.samples_per_second}]},
    {title: 'Gradient norm', log: true, lines: [
        {title: 'norm', color: '--c4', smooth: true, value: (point) => point.grad_norm,
            band: (point) => [point.grad_norm, point.grad_norm_max]}]},
    {title: 'Learning rate', log: true, lines: [
        {title: 'rate', color: '--c5', value: (point) => point.lr}]},
];

/* In others a failure is history. */
const SINCE_FAILURE = new Set(['FAILED', 'RECOVERING', 'PLACING', 'FORMING', 'QUEUED']);

function restartText(recovery) {
    const blamed = recovery.rank >= 0 ? `, rank ${recovery.rank} on ${recovery.node}` : '';
    const cause = recovery.cause === 'planned' ? 'planned' : recovery.cause || 'restart';
    return `generation ${recovery.generation}: ${cause}${blamed}; went on from ` +
        `${recovery.kind || 'nothing'}, ${plural(recovery.steps_lost || 0, 'step')} lost`;
}

function overviewTab(page, holdings) {
    const group = new ChartGroup(holdings);
    const charts = CURVES.map((one) => group.add(one));
    const grid = el('div.charts', null, charts.map((chart) => chart.element));
    const waits = el('p.empty', null, 'No step has been finished yet.');
    const note = el('p.dim.small');
    const cause = el('p.note.bad', {hidden: true});
    const csv = el('a', {href: API + jobPath(page.id, '/metrics.csv'), download: ''},
        'All rows as CSV');
    const update = () => {
        const points = page.curves.points;
        CURVES.forEach((one, at) => setShown(charts[at].element,
            !one.needs || points.some((point) => isNumber(point[one.needs]))));
        setShown(grid, points.length > 0);
        setShown(waits, points.length === 0);
        setText(note, page.curves.thinned ? thinnedText(page.curves) : '');
        group.marks = page.marks();
        group.setPoints(points);
        const first = page.why && page.why.first_cause;
        const matters = first && first.message && SINCE_FAILURE.has(page.job.state);
        setShown(cause, Boolean(matters));
        setText(cause, matters ? firstCauseText(first) : '');
    };
    return {
        update,
        element: el('div.view', null, cause, group.toolbar(MARK_KINDS, csv), waits, grid, note),
    };
}

function thinnedText({points, rows}) {
    return `Drawn are ${plural(points.length, 'point')}, each of some of the ` +
        `${plural(rows, 'row')}; the band goes from the smallest of them to the largest.`;
}

function firstCauseText(first) {
    const rank = first.rank >= 0 ? `rank ${first.rank} ` : '';
    return `First cause since the last progress: ${rank}at step ${formatCount(first.step)}` +
        `${first.phase ? ` in ${first.phase}` : ''}: ${first.message}`;
}

/* ---- the job file ---- */

/* Its keys told apart from values, its comments from both. */
function yamlLine(line) {
    const key = /^(\s*(?:- )?)([\w.-]+)(:)(.*)$/.exec(line);
    if (!key) {
        return el('span', null, `${line}\n`);
    }
    return el('span', null, key[1], el('span.key', null, key[2]), key[3], `${key[4]}\n`);
}

function fileTab(page) {
    const facts = new Facts();
    const text = el('pre.file', {tabindex: 0, 'aria-label': 'Job file'});
    const copy = el('button.quiet', {
        onclick: () => navigator.clipboard.writeText(page.job.job_file || '')
            .then(() => notify('The job file is copied.'))
            .catch(() => notify('The browser doesn\'t let it be copied.', 'bad')),
    }, 'Copy');
    const update = () => {
        const job = page.job;
        facts.set({
            'Model': job.command ? `a command: ${job.command}` : job.model,
            'Checkpoints': job.store,
            'Submitted': formatTime(job.submitted_at), 'Started': formatTime(job.started_at),
            'Ended': formatTime(job.ended_at),
            'Steps of an epoch': formatCount(job.steps_per_epoch || NaN),
            'Copies in memory': job.memory_every ? `every ${plural(job.memory_every, 'step')}, ` +
                `${formatBytes(job.memory_bytes)} each at most` : job.memory_reason,
            'Digest of the weights': job.final_digest,
        });
        if (text.shownText !== job.job_file) {
            text.shownText = job.job_file;
            text.replaceChildren(...(job.job_file || '').split('\n').map(yamlLine));
        }
    };
    return {
        update,
        element: el('div.grid.file', null, section('Job file, with all defaults', copy, text),
            section('About it', facts.element)),
    };
}

/* ---- all of it ---- */

const JOB_TABS = [
    {id: 'curves', title: 'Curves', make: overviewTab},
    {id: 'time', title: 'Time', make: (...page) => timeTab(...page)},
    {id: 'workers', title: 'Workers', make: (...page) => workersTab(...page)},
    {id: 'checkpoints', title: 'Checkpoints', make: (...page) => checkpointsTab(...page)},
    {id: 'events', title: 'Events', make: (...page) => eventsTab(...page)},
    {id: 'logs', title: 'Logs', make: (...page) => logsTab(...page)},
    {id: 'file', title: 'Job file', make: fileTab},
];

class JobPage {
    constructor(holdings, id, tab) {
        Object.assign(this, {holdings, id, job: null, why: null, checkpoints: null});
        this.curves = new Curves();
        this.head = new JobHead(id);
        this.tabs = el('div');
        this.panel = el('div', {role: 'tabpanel', id: 'panel', tabindex: -1});
        const crumbs = el('nav.crumbs', {'aria-label': 'Where this is'},
            el('a', {href: '#/jobs'}, 'Jobs'), ' / ', id);
        this.element = el('div.view.job', null, crumbs, this.head.element, this.tabs, this.panel);
        this.redraw = braked(() => this.update(), REDRAW_MS);
        holdings.add(this.redraw.stop);
        holdings.add(() => this.inner && this.inner.close());
        this.choose(tab);
    }

    get title() {
        const part = this.job && !isOver(this.job) ? progressOf(this.job) : null;
        const name = this.job ? this.job.name : this.id;
        return part === null ? name : `${formatPercent(part)} ${name}`;
    }

    choose(tab) {
        const known = JOB_TABS.find((one) => one.id === tab) || JOB_TABS[0];
        const focused = this.tabs.contains(document.activeElement);
        if (this.inner) {
            this.inner.close();
        }
        this.inner = new Holdings();
        this.tab = known.make(this, this.inner);
        this.tabs.replaceChildren(makeTabs('Parts of the job', JOB_TABS, known.id,
            (id) => go(`#/jobs/${this.id}${id === 'curves' ? '' : `/${id}`}`)));
        this.panel.replaceChildren(this.tab.element);
        setAttribute(this.panel, 'aria-labelledby', `tab-${known.id}`);
        const chosen = document.getElementById(`tab-${known.id}`);
        if (chosen) {
            chosen.scrollIntoView({block: 'nearest', inline: 'nearest'});
        }
        if (focused) {
            chosen.focus();
        }
        this.table = this.tab.table;
        this.filter = this.tab.filter;
        this.update();
    }

    update() {
        if (this.job && !this.holdings.closed) {
            this.head.update(this.job);
            this.tab.update();
            document.title = `${this.title} · Cairn`;
        }
    }

    marks() {
        const recoveries = new Map((this.job.recoveries || []).map((one) => [one.generation, one]));
        return {
            restarts: this.curves.restarts().map((mark) => {
                const recovery = recoveries.get(mark.generation);
                return recovery ? {...mark, text: restartText(recovery),
                    planned: recovery.cause === 'planned'} : mark;
            }),
            saves: this.checkpoints || this.job.checkpoints || [],
            evals: this.curves.evaluations().map((step) => ({step})),
        };
    }

    /* ---- what comes ---- */

    async load() {
        try {
            this.job = await ask(jobPath(this.id));
            this.curves.replace(await ask(jobPath(this.id, `/curves?points=${CURVE_POINTS}`)));
        } catch (refusal) {
            this.panel.replaceChildren(el('p.note.bad', null, refusal.status === 404
                ? `There is no job ${this.id}.` : refusal.message));
            return;
        }
        if (this.holdings.closed) {
            return;
        }
        this.update();
        this.askWhy();
        if (!isOver(this.job)) {
            this.follow();
        }
        this.holdings.every(WHY_SECONDS, () =>
            isOver(this.job) || document.hidden || this.askWhy());
        listen(this.holdings, 'session', this.redraw);
    }

    follow() {
        this.waiting = null; /* rows that came while the curves are asked for */
        this.holdings.add(openStream(() => jobPath(this.id, `/live?from=${this.curves.nextStep}`), {
            job: (job) => this.takeJob(job),
            rows: (rows) => this.takeRows(rows),
            over: () => this.refresh(),
        }, (again) => again && this.catchUp()));
    }

    /* Rows may have been computed anew while the stream was away. */
    async catchUp() {
        this.waiting = [];
        try {
            this.curves.replace(await ask(jobPath(this.id, `/curves?points=${CURVE_POINTS}`)));
        } catch (_) {
            /* then what was known stays, and rows go on from there */
        }
        const rows = this.waiting;
        this.waiting = null;
        rows.forEach((one) => this.takeRows(one));
        this.refresh();
    }

    takeRows(rows) {
        if (this.waiting) {
            this.waiting.push(rows);
        } else {
            this.curves.append(rows);
            this.redraw();
        }
    }

    takeJob(job) {
        const before = this.job;
        const kept = {events: before.events, recoveries: before.recoveries};
        const newest = (one) => JSON.stringify([one.state, one.generation, one.recovery_count,
            ((one.checkpoints || [])[0] || {}).step]);
        const changed = newest(before) !== newest(job);
        this.job = {...job, ...kept}; /* which the stream doesn't have */
        if (changed) {
            this.refresh();
        }
        this.redraw();
    }

    /* The parts that the stream doesn't have: events, recoveries, the story. */
    async refresh() {
        try {
            this.job = await ask(jobPath(this.id));
        } catch (_) {
            /* the banner says it */
        }
        await this.askWhy();
    }

    async askWhy() {
        try {
            this.why = await ask(jobPath(this.id, '/why'));
            const told = this.why.job || {};
            this.job = {...this.job, events: told.events || this.job.events,
                recoveries: told.recoveries || this.job.recoveries};
            this.checkpoints = (await ask(jobPath(this.id, '/checkpoints'))).checkpoints || [];
        } catch (_) {
            /* as above */
        }
        this.redraw();
    }
}

function jobView(holdings, id, tab) {
    const page = new JobPage(holdings, id, tab);
    page.load();
    return page;
}
