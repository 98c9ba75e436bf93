/*
 * Several jobs beside each other: their curves over one another by step, and the difference of
 * their job files, key by key.
 */
'use strict';

const COMPARE_POINTS = 500;
const COMPARE_SECONDS = 2; /* between two looks at jobs that run */
const DASHES = [null, [6, 3], [2, 2], [8, 3, 2, 3]];

const COMPARED = [
    {title: 'Loss', name: 'loss', log: true, smooth: true},
    {title: 'Evaluation loss', name: 'eval_loss', log: true, sparse: true},
    {title: 'Accuracy', name: 'eval_accuracy', sparse: true, format: formatShare},
    {title: 'Gradient norm', name: 'grad_norm', log: true, smooth: true},
    {title: 'Learning rate', name: 'lr', log: true},
    {title: 'Speed', name: 'samples_per_second', unit: 'samples/s', smooth: true, zero: true},
];

/* ---- job files ---- */

/* 'train.lr' → '0.1' of each key of a normalised job file: two spaces a level, a value a line. */
function keysOf(file) {
    const keys = new Map();
    const path = [];
    (file || '').split('\n').forEach((line) => {
        const found = /^( *)([^\s:#][^:]*):\s*(.*)$/.exec(line);
        if (found) {
            path.length = found[1].length / 2;
            path.push(found[2]);
            if (found[3] !== '') {
                keys.set(path.join('.'), found[3]);
            }
        }
    });
    return keys;
}

function differencesOf(jobs) {
    const files = jobs.map((job) => keysOf(job.job_file));
    const names = [...new Set(files.flatMap((keys) => [...keys.keys()]))];
    return names.map((name) => [name, ...files.map((keys) => keys.get(name) ?? '')])
        .filter(([, ...values]) => new Set(values).size > 1);
}

function differenceCard(jobs) {
    const show = (value) =>
        (value === '' ? el('span.dim', null, 'not set') : el('code', null, value));
    const rows = differencesOf(jobs).map(([name, ...values]) =>
        [el('code', null, name), ...values.map(show)]);
    return section('Difference of the job files', rows.length === 0
        ? el('p.dim', null, 'There is none: the files are the same.')
        : plainTable('Difference of the job files', ['key', ...jobs.map((job) => job.name)], rows));
}

/* ---- curves ---- */

/* One row for each step that any job has a point at: {step, of: [point of each job, if it has]}. */
function joinByStep(curves) {
    const rows = new Map();
    curves.forEach((one, at) => one.points.forEach((point) => {
        const row = rows.get(point.step) || {step: point.step, generation: null, of: []};
        row.of[at] = point;
        rows.set(point.step, row);
    }));
    return [...rows.values()].sort((a, b) => a.step - b.step);
}

const lineTitle = (job, jobs) =>
    (jobs.filter((one) => one.name === job.name).length > 1 ? `${job.name} (${job.id})` : job.name);

function comparedLines(jobs, {name, smooth}) {
    return jobs.map((job, at) => ({
        title: lineTitle(job, jobs), color: `--c${at + 1}`, dash: DASHES[at % DASHES.length],
        sparse: true, smooth, value: (row) => (row.of[at] ? row.of[at][name] : null),
    }));
}

function comparedTable(jobs) {
    const fields = [
        ['State', (job) => jobBadge(job)],
        ['Step', stepsText],
        ['Loss', (job) => formatNumber(job.loss)],
        ['Evaluation loss', (job) => formatNumber(job.eval_loss)],
        ['Accuracy', (job) => formatPercent(job.accuracy, 2)],
        ['Speed', (job) => `${formatNumber(job.throughput)} ${job.throughput_unit || ''}`],
        ['Recoveries', (job) => formatCount(job.recovery_count || 0)],
        ['Goodput', (job) => formatPercent(job.goodput, 1)],
        ['Model', (job) => job.model],
        ['Time', (job) => formatSeconds(secondsBetween(job.started_at, job.ended_at))],
    ];
    const heads = jobs.map((job, at) => el('a', {href: `#/jobs/${job.id}`},
        el('span.swatch', {style: {background: `var(--c${at + 1})`}}), lineTitle(job, jobs)));
    return plainTable('Compared jobs', ['', ...heads],
        fields.map(([title, show]) => [title, ...jobs.map(show)]));
}

async function loadCompared(id) {
    const curves = new Curves();
    const job = await ask(jobPath(id));
    curves.replace(await ask(jobPath(id, `/curves?points=${COMPARE_POINTS}`)));
    return {job, curves};
}

function compareView(holdings, ids) {
    const wanted = [...new Set(ids.split(',').filter(Boolean))].slice(0, COMPARED_MAX);
    const body = el('div.view', null, el('p.dim', null, 'Asking for their curves…'));
    const table = el('div');
    const group = new ChartGroup(holdings);
    let loaded = [];

    const show = () => {
        const jobs = loaded.map(({job}) => job);
        table.replaceChildren(comparedTable(jobs));
        group.setPoints(joinByStep(loaded.map(({curves}) => curves)));
    };
    const build = () => {
        const jobs = loaded.map(({job}) => job);
        const charts = COMPARED.map((one) => group.add({...one, lines: comparedLines(jobs, one)}));
        body.replaceChildren(group.toolbar([]),
            el('div.charts', null, charts.map((chart) => chart.element)),
            section('Side by side', table), differenceCard(jobs));
        show();
    };
    let busy = false;
    const refresh = async () => {
        if (busy || document.hidden || loaded.length === 0) {
            return;
        }
        busy = true;
        try {
            loaded = await Promise.all(loaded.map((one) =>
                (isOver(one.job) ? one : loadCompared(one.job.id))));
            show();
        } catch (_) {
            /* the banner says it; the next look may succeed */
        }
        busy = false;
    };
    Promise.all(wanted.map(loadCompared)).then((all) => {
        if (!holdings.closed) {
            loaded = all;
            build();
            holdings.every(COMPARE_SECONDS, refresh);
        }
    }).catch((refusal) => body.replaceChildren(el('p.note.bad', null, refusal.message)));
    return {
        title: 'Compare',
        element: el('div.view', null,
            el('div.head', null, el('h1', null, `Compare ${plural(wanted.length, 'job')}`),
                el('a.button.quiet', {href: '#/jobs'}, 'Back to jobs')), body),
    };
}
