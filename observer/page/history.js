/*
 * What happened to a job, and what it has: the tabs of time, workers, checkpoints and events.
 */
'use strict';

/* ---- seconds by part ---- */

const PART_COLORS = {
    train: '--c3', detect: '--c2', end: '--c8', wait: '--muted', form: '--c5', restore: '--c4',
    replay: '--c6', stall: '--c7',
};
const partColor = (part) => `var(${PART_COLORS[part] || '--muted'})`;

/* {cause: seconds}, as the server sends it; a list of {cause, seconds} is as good. */
function secondsOf(lost) {
    if (Array.isArray(lost)) {
        return Object.fromEntries(lost.map((one) => [one.cause, one.seconds]));
    }
    return lost || {};
}

const sumOf = (seconds) => Object.values(seconds).reduce((sum, value) => sum + (value || 0), 0);

function partShares(seconds) {
    return Object.entries(seconds)
        .map(([title, value]) => ({title, value, color: partColor(title)}));
}

const partWords = (seconds) => partShares(seconds).filter((part) => part.value > 0)
    .map((part) => `${part.title} ${formatSeconds(part.value)}`).join(', ');

/* ---- the time line ---- */

/* Where a recovery took time, from the last progress on. */
function lostBar(recovery, begin, whole) {
    const seconds = secondsOf(recovery.seconds);
    const from = millisecondsOf(recovery.time) - 1000 * (seconds.detect || 0);
    return el('span.lost', {
        title: `${restartText(recovery)}: ${partWords(seconds)}`,
        style: {
            left: `${100 * Math.max(0, from - begin) / whole}%`,
            width: `${100000 * sumOf(seconds) / whole}%`,
        },
    });
}

/* One bar for each generation where it was; what lies between them was no training. */
function timeLine(generations, recoveries) {
    const begin = millisecondsOf(generations[0].begin);
    const end = Math.max(...generations.map((one) => millisecondsOf(one.end) || Date.now()));
    const whole = Math.max(1, end - begin);
    const lost = recoveries.map((one) => lostBar(one, begin, whole));
    const bars = generations.map((one) => {
        const from = millisecondsOf(one.begin);
        const to = millisecondsOf(one.end) || end;
        const failed = one.end && one.cause;
        return el(`span.generation${failed ? '.failed' : ''}`, {
            title: generationText(one),
            style: {
                left: `${100 * (from - begin) / whole}%`,
                width: `${100 * (to - from) / whole}%`,
            },
        }, `g${one.generation}`);
    });
    return el('div.timeline', null, el('div.track', {
        role: 'img', 'aria-label': `Time line: ${plural(generations.length, 'generation')}, ` +
            generations.map(generationText).join('; '),
    }, bars, lost), el('div.ends', null, timeElement(generations[0].begin),
        el('span', null, formatSeconds(whole / 1000)),
        el('time', null, formatTime(new Date(end).toISOString()))));
}

function generationText(one) {
    return `generation ${one.generation} from step ${formatCount(one.from_step)}` +
        (one.end ? ` to ${formatCount(one.to_step)}, ${one.cause || 'as planned'}` : ', runs');
}

/* 'a,a,b' → 'a ×2, b'; a list that was too long to be sent is two numbers. */
function nodesText(generation) {
    const counts = new Map();
    if (!generation.nodes && generation.workers > 0) {
        return `${plural(generation.node_count, 'node')}, ` +
            plural(generation.workers, 'worker');
    }
    (generation.nodes || '').split(',').forEach((name) =>
        counts.set(name, (counts.get(name) || 0) + 1));
    return [...counts].map(([name, count]) => (count > 1 ? `${name} ×${count}` : name)).join(', ');
}

function endOf(generation) {
    if (!generation.end) {
        return badge('run', 'runs');
    }
    return generation.cause ? el('span.bad', null, generation.cause) : 'as planned';
}

/* How a generation came from the one before it. */
function recoveryCells(recovery) {
    if (!recovery) {
        return [NOTHING, NOTHING, NOTHING];
    }
    const seconds = secondsOf(recovery.seconds);
    return [recovery.kind || NOTHING, formatCount(recovery.steps_lost || 0),
        el('span', {title: partWords(seconds)}, formatSeconds(sumOf(seconds)))];
}

function generationTable(generations, recoveries) {
    const after = new Map(recoveries.map((one) => [one.generation, one]));
    const rows = [...generations].reverse().map((one) => {
        const to = one.end ? formatCount(one.to_step) : 'now';
        return [String(one.generation), timeElement(one.begin),
            formatSeconds(secondsBetween(one.begin, one.end)),
            `${formatCount(one.from_step)} → ${to}`, nodesText(one), endOf(one),
            ...recoveryCells(after.get(one.generation)), el('span.seen', null, one.message)];
    });
    return plainTable('Generations, newest first', ['Generation', 'Began', 'Lasted', 'Steps',
        'Nodes', 'Ended by', 'Came from', 'Steps lost', 'Time lost', 'What was seen'], rows);
}

function lossByCause(losses) {
    const rows = losses.map((one) => {
        const seconds = secondsOf(one.seconds);
        return [one.cause, formatCount(one.count), formatCount(one.steps_lost || 0),
            formatSeconds(sumOf(seconds)),
            shareStrip(one.cause, partShares(seconds), formatSeconds)];
    });
    return plainTable('Lost by cause',
        ['Cause', 'Times', 'Steps lost', 'Time lost', 'By part'], rows);
}

const PHASE_COLORS = ['--c6', '--c1', '--c5', '--c2', '--c3', '--c4'];

/* What no phase accounts for comes on top. */
function phaseLines() {
    const known = (point) => PHASES.reduce((sum, name) => sum + (point[`${name}_seconds`] || 0), 0);
    const lines = PHASES.map((name, at) => ({
        title: name, color: PHASE_COLORS[at],
        value: (point) => (isNumber(point[`${name}_seconds`]) ? point[`${name}_seconds`] : null),
    }));
    return [{title: 'other', color: '--c8', value: (point) => (isNumber(point.seconds)
        ? Math.max(0, point.seconds - known(point)) : null)}, ...lines.reverse()];
}

/* What one doesn't know, nobody knows. */
function sumIfKnown(values) {
    return values.length > 0 && values.every(isNumber)
        ? values.reduce((sum, value) => sum + value, 0) : null;
}

function speedFacts(job) {
    const peak = sumIfKnown((job.workers || []).map((worker) => worker.peak_flops));
    return {
        'A step takes': isNumber(job.step_ms) ? formatSeconds(job.step_ms / 1000) : '',
        'Operations of a step': formatFlops(job.flops_per_step),
        'Its workers could do': peak === null ? '' : `${formatFlops(peak)}/s`,
        'MFU': formatPercent(job.mfu, 1),
    };
}

function timeTab(page, holdings) {
    const group = new ChartGroup(holdings);
    const phases = group.add({title: 'Where a step spends its time', unit: 'of rank 0',
        stacked: true, lines: phaseLines(), format: (value) => formatSeconds(value)});
    const story = el('div.view');
    const speed = new Facts('figures');
    const update = () => {
        speed.set(speedFacts(page.job));
        group.marks = page.marks();
        group.setPoints(page.curves.points);
        const text = JSON.stringify(page.why);
        if (page.why && story.shownText !== text) {
            story.shownText = text;
            story.replaceChildren(...storyOf(page.why, page.job));
        }
    };
    return {update, element: el('div.view', null, section('Speed', speed.element), story,
        phases.element)};
}

function storyOf(why, job) {
    const lost = secondsOf(job.lost_seconds);
    const generations = why.generations || [];
    const advice = why.advice || [];
    const train = {title: 'train', value: why.train_seconds || 0, color: partColor('train')};
    const parts = [section('Where the time went',
        sharesBar('Where the time went', [train, ...partShares(lost)], formatSeconds))];
    if (generations.length > 0) {
        parts.push(section('Generations', timeLine(generations, job.recoveries || []),
            generationTable(generations, job.recoveries || []),
            why.generations_left_out > 0 ? el('p.dim', null,
                `${plural(why.generations_left_out, 'older generation')} left out`) : ''));
    }
    if ((why.lost_by_cause || []).length > 0) {
        parts.push(section('Lost between generations, by cause', lossByCause(why.lost_by_cause)));
    }
    if (advice.length > 0) {
        parts.push(section('What you can do', el('ul', null, advice.map((one) =>
            el('li', null, el('b', null, `${one.about}: `), prose(one.text))))));
    }
    if (why.text) {
        parts.push(el('details.card', null,
            el('summary', null, prose('The same in words, as `cairn why` tells it')),
            el('pre', {tabindex: 0}, why.text)));
    }
    return parts;
}

/* ---- workers ---- */

function memoryText(usage) {
    const limit = isNumber(usage.memory_limit_bytes)
        ? ` of ${formatBytes(usage.memory_limit_bytes)}` : '';
    return `${formatBytes(usage.memory_bytes)}${limit}`;
}

const WORKER_TONES = {starting: 'wait', forming: 'wait', running: 'run', gone: 'bad'};

function workersTab(page) {
    let first = 0;
    const behind = (worker) => Math.max(0, first - worker.step);
    const speed = (worker) => worker.seconds_per_step || null; /* 0: not known */
    const number = (id, title, text, sort) => ({id, title, class: 'number', text, sort});
    const used = (worker) => worker.usage || {};
    const table = new Table({
        label: 'Workers', key: (worker) => worker.rank, sort: {id: 'rank', down: false},
        empty: 'It has no workers now.',
        columns: [
            number('rank', 'Rank', (worker) => String(worker.rank), (worker) => worker.rank),
            {id: 'node', title: 'Node', text: (worker) => worker.node,
                sort: (worker) => worker.node},
            {id: 'state', title: 'State', text: (worker) => worker.state || '',
                draw: (cell, worker) => cell.replaceChildren(
                    badge(WORKER_TONES[worker.state] || 'wait', worker.state))},
            number('step', 'Step', (worker) => formatCount(worker.step), (worker) => worker.step),
            number('behind', 'Behind', (worker) => (behind(worker) === 0 ? NOTHING
                : plural(behind(worker), 'step')), behind),
            {id: 'phase', title: 'Phase', text: (worker) => worker.phase || NOTHING},
            number('share', 'Lanes', (worker) => formatCount(worker.share),
                (worker) => worker.share),
            number('speed', 'Computes a step in', (worker) => formatSeconds(speed(worker)), speed),
            number('cores', 'Cores', (worker) => formatNumber(used(worker).cores, 3),
                (worker) => used(worker).cores),
            number('memory', 'Memory', (worker) => memoryText(used(worker)),
                (worker) => used(worker).memory_bytes),
            number('sent', 'Sent', (worker) => formatBytes(worker.sent_bytes),
                (worker) => worker.sent_bytes),
            number('received', 'Received', (worker) => formatBytes(worker.received_bytes),
                (worker) => worker.received_bytes),
            number('pid', 'Process', (worker) => String(worker.pid || NOTHING),
                (worker) => worker.pid),
        ],
    });
    const lanes = el('div');
    const spares = el('div');
    const update = () => {
        const workers = page.job.workers || [];
        first = Math.max(0, ...workers.map((worker) => worker.step));
        table.update(workers);
        const text = JSON.stringify(
            [workers.map((worker) => [worker.rank, worker.share]), page.job.spares]);
        if (lanes.shownText !== text) {
            lanes.shownText = text;
            drawLanes(lanes, workers);
            drawSpares(spares, page.job);
        }
    };
    return {table, update,
        element: el('div.view', null, el('div.card.flush', null, table.element), lanes, spares)};
}

function drawLanes(place, workers) {
    const shares = workers.filter((worker) => worker.share > 0).map((worker) => ({
        title: `rank ${worker.rank}`, value: worker.share,
        color: `var(--c${1 + worker.rank % 8})`,
    }));
    const few = shares.length > 1 && shares.length <= 64;
    place.replaceChildren(few ? section('Lanes of the batch',
        sharesBar('Lanes', shares, (value) => plural(value, 'lane'))) : '');
}

function drawSpares(place, job) {
    const rows = (job.spares || []).map((spare) => [spare.node, spare.state, String(spare.pid),
        String(spare.slot)]);
    place.replaceChildren(rows.length > 0 ? section('Spares, which take the seat of who dies',
        plainTable('Spares', ['Node', 'State', 'Process', 'Slot'], rows)) : '');
}

/* ---- checkpoints ---- */

function verifiedText(checkpoint) {
    if (checkpoint.status && checkpoint.status !== 'good') {
        return checkpoint.status;
    }
    return checkpoint.verified ? 'read back, good' : 'not read back';
}

function drawVerified(cell, checkpoint) {
    const text = verifiedText(checkpoint);
    const tone = {'read back, good': 'good', 'not read back': 'wait'}[text] || 'bad';
    cell.replaceChildren(badge(tone, text));
}

const tookSeconds = ({times}) =>
    (times ? ((times.save_us || 0) + (times.commit_us || 0)) / 1e6 : null);

function planText(plan) {
    if (!plan) {
        return '';
    }
    const parts = [];
    if (plan.interval_s > 0) {
        parts.push(`one every ${formatSeconds(plan.interval_s)}`);
    }
    if (plan.cost_s > 0) {
        parts.push(`each takes ${formatSeconds(plan.cost_s)} from training`);
    }
    if (plan.refused > 0) {
        parts.push(`${plural(plan.refused, 'checkpoint')} refused by the store: ` +
            plan.refused_reason);
    }
    return parts.join('; ');
}

function checkpointsTab(page) {
    const number = (id, title, text, sort) => ({id, title, class: 'number', text, sort});
    const table = new Table({
        label: 'Checkpoints', sort: {id: 'step', down: true}, empty: 'There are none yet.',
        key: (one) => `${one.step}/${one.generation}`,
        columns: [
            number('step', 'Step', (one) => formatCount(one.step), (one) => one.step),
            number('generation', 'Generation', (one) => String(one.generation),
                (one) => one.generation),
            {id: 'time', title: 'Saved', text: (one) => formatTime(one.committed_at),
                sort: (one) => one.committed_at},
            number('size', 'Size', (one) => formatBytes(one.bytes), (one) => one.bytes),
            number('raw', 'Of', (one) => formatBytes(one.raw_bytes), (one) => one.raw_bytes),
            {id: 'kind', title: 'Holds', text: (one) => (one.parent_generation
                ? `differences to ${formatCount(one.parent_step)}` : 'all of it')},
            number('loss', 'Loss', (one) => formatNumber(one.loss), (one) => one.loss),
            number('eval', 'Evaluation', (one) => formatNumber(one.eval_loss),
                (one) => one.eval_loss),
            number('accuracy', 'Accuracy', (one) => formatPercent(one.eval_accuracy, 2),
                (one) => one.eval_accuracy),
            {id: 'verified', title: 'Verified', text: verifiedText, draw: drawVerified,
                sort: verifiedText},
            number('took', 'Took', (one) => formatSeconds(tookSeconds(one)), tookSeconds),
            number('shards', 'Files', (one) => formatCount(one.shards), (one) => one.shards),
        ],
    });
    const note = el('p.dim');
    const update = () => {
        const all = page.checkpoints || page.job.checkpoints || [];
        const bytes = all.reduce((sum, one) => sum + (one.bytes || 0), 0);
        table.update(all);
        const held = all.length > 0 ? `${plural(all.length, 'checkpoint')}, ` +
            `${formatBytes(bytes)} in ${page.job.store}` : '';
        setText(note, [held, planText(page.job.checkpoint_plan)].filter(Boolean).join(' · '));
    };
    return {table, update,
        element: el('div.view', null, note, el('div.card.flush', null, table.element))};
}

/* ---- events ---- */

const ROUTINE = new Set(['saved', 'audit-passed']);

/* What comes again and again while all is well is one entry: [[event, …], …]. */
function foldEvents(events) {
    const folded = [];
    events.forEach((event) => {
        const group = folded[folded.length - 1];
        if (group && ROUTINE.has(event.kind) && ROUTINE.has(group[0].kind)) {
            group.push(event);
        } else {
            folded.push([event]);
        }
    });
    return folded;
}

const EVENT_TONES = {
    fault: 'bad', failed: 'bad', diverged: 'bad', recovering: 'warn', live: 'good', memory: 'good',
    running: 'good', succeeded: 'good',
};

function eventLine(event, words) {
    const tone = EVENT_TONES[event.kind] || 'wait';
    return el('div.event', null, timeElement(event.time),
        el('span.dim', null, `g${event.generation}`),
        el('span.dim.number', null, formatCount(event.step)),
        el(`span.kind.${tone}`, null, event.kind),
        el('span.message', null, words || event.message));
}

function eventGroup(group) {
    if (group.length === 1) {
        return el('li', null, eventLine(group[0]));
    }
    const [first, last] = [group[0], group[group.length - 1]];
    const kinds = [...new Set(group.map((event) => event.kind))].sort().reverse();
    const counts = kinds.map((kind) =>
        `${kind} ${timesText(group.filter((event) => event.kind === kind).length)}`);
    const words = `${counts.join(', ')}, from step ${formatCount(first.step)} on`;
    const folded = {...last, kind: kinds[0]};
    return el('li', null, el('details', null, el('summary', null, eventLine(folded, words)),
        [...group].reverse().map((event) => eventLine(event))));
}

function eventsTab(page) {
    const list = el('ol.events', {'aria-label': 'Events, newest first'});
    let text = '';
    const filter = makeFilter('Filter events', '', (value) => {
        text = value.toLowerCase();
        update();
    });
    const update = () => {
        const events = (page.job.events || []).filter((event) =>
            `${event.kind} ${event.message}`.toLowerCase().includes(text));
        const last = events[events.length - 1] || {};
        const shown = JSON.stringify([events.length, last.time, last.message, text]);
        if (list.shownText !== shown) {
            list.shownText = shown;
            list.replaceChildren(...foldEvents(events).reverse().map(eventGroup));
            if (events.length === 0) {
                list.append(el('li.empty', null, 'No event is like that.'));
            }
        }
    };
    return {update, filter,
        element: el('div.view', null, el('div.toolbar', null, filter), el('div.card', null, list))};
}
