/*
 * The pages of many things: jobs, nodes, the system itself.
 */
'use strict';

const COMPARED_MAX = 8; /* as many as there are colours that are told apart */

/* ---- jobs ---- */

/* Kept while other pages are looked at. */
const jobList = {text: '', kind: 'all', sort: {id: 'age', down: false}, selection: new Set()};

const JOB_KINDS = [
    {id: 'all', title: 'All', of: () => true},
    {id: 'active', title: 'Active', of: (job) => !isOver(job)},
    {id: 'unwell', title: 'Unwell', of: (job) => ['warn', 'bad'].includes(jobTone(job))},
    {id: 'done', title: 'Succeeded', of: (job) => job.state === 'SUCCEEDED'},
    {id: 'failed', title: 'Failed', of: (job) => job.state === 'FAILED'},
    {id: 'ended', title: 'Stopped', of: (job) => job.state === 'STOPPED' || job.state === 'KILLED'},
];

const ageMs = (job) => Date.now() - (millisecondsOf(job.submitted_at) || 0);

function workersText(job) {
    const there = (job.workers || []).filter((worker) => worker.state !== 'gone').length;
    return job.workers_count ? `${isOver(job) ? '' : `${there}/`}${job.workers_count}` : NOTHING;
}

function drawName(cell, job) {
    cell.replaceChildren(el('a.name', {href: `#/jobs/${job.id}`, tabindex: -1}, job.name || job.id),
        el('span.id', null, job.id));
}

function drawProgress(cell, job) {
    const part = progressOf(job);
    cell.replaceChildren(progressBar(part, `${job.name} progress`, jobTone(job)),
        el('span.of', null, stepsText(job)));
}

function selectColumn(selection, changed) {
    return {
        id: 'select', title: '', class: 'select',
        text: (job) => `${job.id} ${selection.has(job.id)}`,
        draw: (cell, job) => cell.replaceChildren(el('input', {
            type: 'checkbox', checked: selection.has(job.id), tabindex: -1,
            'aria-label': `select ${job.name}`,
            onchange: (event) => {
                if (event.target.checked) {
                    selection.add(job.id);
                } else {
                    selection.delete(job.id);
                }
                changed();
            },
        })),
    };
}

function jobColumns(selectionChanged) {
    return [
        selectColumn(jobList.selection, selectionChanged),
        {id: 'name', title: 'Name', class: 'title', text: (job) => `${job.name} ${job.id}`,
            draw: drawName, sort: (job) => job.name},
        {id: 'state', title: 'State', class: 'state', sort: jobWords,
            text: (job) => `${jobWords(job)} ${job.reason}`,
            draw: (cell, job) => cell.replaceChildren(jobBadge(job))},
        {id: 'progress', title: 'Progress', class: 'wide', draw: drawProgress,
            text: (job) => `${job.step} ${job.total_steps} ${jobTone(job)}`, sort: progressOf},
        {id: 'eta', title: 'Left', class: 'number',
            text: (job) => (isOver(job) ? NOTHING : formatSeconds(job.eta_seconds)),
            sort: (job) => (isOver(job) ? null : job.eta_seconds)},
        {id: 'loss', title: 'Loss', class: 'number', text: (job) => formatNumber(job.loss),
            sort: (job) => job.loss},
        {id: 'speed', title: 'Speed', class: 'number', sort: (job) => job.throughput,
            text: (job) => (isNumber(job.throughput)
                ? `${formatNumber(job.throughput, 3)} ${job.throughput_unit || ''}` : NOTHING)},
        {id: 'workers', title: 'Workers', class: 'number', text: workersText,
            sort: (job) => job.workers_count},
        {id: 'recoveries', title: 'Recoveries', class: 'number',
            text: (job) => formatCount(job.recovery_count || 0),
            sort: (job) => job.recovery_count || 0},
        {id: 'goodput', title: 'Goodput', class: 'number',
            text: (job) => formatPercent(job.goodput, 1), sort: (job) => job.goodput},
        {id: 'age', title: 'Age', class: 'number', text: (job) => formatAge(job.submitted_at),
            sort: ageMs},
    ];
}

function wantedJobs() {
    const words = jobList.text.toLowerCase().split(/\s+/).filter(Boolean);
    const kind = JOB_KINDS.find((one) => one.id === jobList.kind);
    return [...store.jobs.values()].filter((job) => {
        const text = [job.name, job.id, jobWords(job), job.model, job.reason].join(' ');
        return kind.of(job) && words.every((word) => text.toLowerCase().includes(word));
    });
}

/* Chips that say how many there are, and filter. */
function makeKinds(changed) {
    const chips = JOB_KINDS.map((kind) => el('button.chip', {
        onclick: () => {
            jobList.kind = kind.id;
            changed();
        },
    }, kind.title, ' ', el('b')));
    const show = () => JOB_KINDS.forEach((kind, at) => {
        const count = [...store.jobs.values()].filter(kind.of).length;
        setAttribute(chips[at], 'aria-pressed', String(kind.id === jobList.kind));
        setText(chips[at].lastElementChild, formatCount(count));
        setShown(chips[at], count > 0 || kind.id === 'all' || kind.id === jobList.kind);
    });
    const element = el('div.chips', {role: 'group', 'aria-label': 'Filter by state'}, chips);
    return {element, show};
}

function makeFilter(label, value, changed) {
    return el('input.filter', {
        type: 'search', placeholder: `${label}  ( / )`, 'aria-label': label, value,
        oninput: (event) => changed(event.target.value),
        onkeydown: (event) => event.key === 'Escape' && event.target.blur(),
    });
}

/* On a phone jobs are cards, without the heads that sort a table. */
function makeOrder(table, columns) {
    const sorts = columns.filter((column) => column.sort);
    const select = el('select', {
        'aria-label': 'Order of the jobs',
        onchange: () => {
            const [id, way] = select.value.split(' ');
            Object.assign(jobList.sort, {id, down: way === 'down'});
            table.update(table.rows);
        },
    }, sorts.flatMap(({id, title}) => ['up', 'down'].map((way) =>
        el('option', {value: `${id} ${way}`}, `${title} ${way === 'up' ? '↑' : '↓'}`))));
    select.value = `${jobList.sort.id} ${jobList.sort.down ? 'down' : 'up'}`;
    return el('label.check.order', null, 'Order', select);
}

function makeCompareBar(changed) {
    const link = el('a.button.primary');
    const clear = el('button.quiet', {
        onclick: () => {
            jobList.selection.clear();
            changed();
        },
    }, 'Clear');
    const element = el('div.selected', {hidden: true, role: 'status'}, link, clear);
    const show = () => {
        const ids = [...jobList.selection];
        const [few, many] = [ids.length < 2, ids.length > COMPARED_MAX];
        setShown(element, ids.length > 0);
        setText(link, few ? 'Select one more to compare' : many
            ? `Compare: ${COMPARED_MAX} at most` : `Compare ${ids.length} jobs`);
        setAttribute(link, 'aria-disabled', String(few || many));
        setAttribute(link, 'href', few || many ? '#/jobs' : `#/compare/${ids.join(',')}`);
    };
    return {element, show};
}

function jobsView(holdings) {
    const changed = () => refresh();
    const kinds = makeKinds(changed);
    const compare = makeCompareBar(changed);
    const filter = makeFilter('Filter jobs', jobList.text, (text) => {
        jobList.text = text;
        refresh();
    });
    const columns = jobColumns(changed);
    const table = new Table({
        label: 'Jobs', columns, key: (job) => job.id, sort: jobList.sort,
        selection: jobList.selection, open: (job) => go(`#/jobs/${job.id}`),
    });
    const note = el('p.dim', {hidden: true},
        prose('These are the newest jobs; older ones are listed by `cairn ps`.'));
    const refresh = () => {
        table.empty = !store.jobsKnown ? 'Asking for the jobs…' : store.jobs.size > 0
            ? 'No job is like that.' : 'No jobs yet: `cairn submit job.yaml` starts one.';
        kinds.show();
        compare.show();
        table.update(wantedJobs());
        setShown(note, store.jobsTruncated);
    };
    const soon = braked(refresh, REDRAW_MS);
    listen(holdings, 'jobs', soon);
    holdings.every(10, soon); /* ages */
    holdings.add(soon.stop);
    refresh();
    return {
        title: 'Jobs', table, filter,
        element: el('div.view', null,
            el('div.head', null, el('h1', null, 'Jobs'), compare.element, filter), kinds.element,
            makeOrder(table, columns),
            el('div.card.flush.jobs', null, table.element), note),
    };
}

/* ---- nodes ---- */

function slotsBar(node) {
    const most = 64; /* of more slots single ones can't be seen */
    const label = `${node.used} of ${node.slots} slots used`;
    if (node.slots === 0) {
        return el('span.dim', null, 'no slots');
    }
    const boxes = Array.from({length: Math.min(most, node.slots)}, (_, at) =>
        el(at * node.slots < node.used * Math.min(most, node.slots) ? 'i.taken' : 'i'));
    return [el('span.slots', {role: 'img', 'aria-label': label}, boxes),
        ` ${node.used} of ${node.slots} used`];
}

function gpuRow(gpu) {
    const used = gpu.memory_bytes > 0 ? gpu.memory_used_bytes / gpu.memory_bytes : null;
    const hot = gpu.temperature >= 85 || gpu.throttled;
    const tone = gpu.problem ? 'bad' : hot ? 'warn' : 'run';
    const problems = [gpu.problem, gpu.throttled && 'throttled, by heat or power',
        gpu.ecc_errors && plural(gpu.ecc_errors, 'memory error')].filter(Boolean).join(' · ');
    const memory = `${formatBytes(gpu.memory_used_bytes)} of ${formatBytes(gpu.memory_bytes)}`;
    return el('div.gpu', null, el('span', {title: gpu.uuid}, gpu.name || 'GPU'),
        progressBar(used, `${gpu.name} memory`, tone), el('span', null, memory),
        el('span', null, gpu.temperature ? `${gpu.temperature} °C` : ''),
        problems && el('span.problem', null, problems));
}

const rateText = (bytes) => (isNumber(bytes) ? `${formatBytes(Math.round(bytes))}/s` : '');

/* What changes all the time: beside the rest of the card, so that its buttons stay. */
function usageFacts(node) {
    const usage = node.usage || {};
    const known = isNumber(usage.memory_bytes) && isNumber(usage.memory_available_bytes);
    const busy = (node.gpus || []).map((gpu) => [formatPercent(gpu.utilization),
        isNumber(gpu.power_watts) ? `${gpu.power_watts.toFixed(0)} W` : ''].join(' ').trim());
    return {
        'Cores busy': isNumber(usage.cores)
            ? `${usage.cores.toFixed(1)} of ${usage.cores_count}` : '',
        'Memory used': known ? `${formatBytes(usage.memory_bytes - usage.memory_available_bytes)}` +
            ` of ${formatBytes(usage.memory_bytes)}` : '',
        'Receives': rateText(usage.received_bytes_per_s),
        'Sends': rateText(usage.sent_bytes_per_s),
        ...(busy.length > 0 ? {'GPUs busy': busy.join(', ')} : {}),
    };
}

/* What its card is made anew for. */
function lasting(node) {
    const gpus = (node.gpus || []).map((gpu) => ({...gpu, utilization: null, power_watts: null}));
    return {...node, usage: null, gpus};
}

function drainNode(node) {
    return confirmAndAct({
        dialog: {
            title: `Drain ${node.name}?`, verb: 'Drain', danger: true,
            body: el('p', null, 'Jobs with workers there save and go on elsewhere; ' +
                'the node takes no others until it is undrained.'),
            question: {label: 'Reason, for those who wonder', max: 100},
        },
        perform: (reason) => act(`/nodes/${encodeURIComponent(node.name)}/drain`, {reason}),
        tellResult: (reply) => `${reply.name} is ${reply.state}`,
    });
}

function undrainNode(node) {
    return confirmAndAct({
        dialog: {
            title: `Undrain ${node.name}?`, verb: 'Undrain',
            body: el('p', null, 'It takes jobs again.'),
        },
        perform: () => act(`/nodes/${encodeURIComponent(node.name)}/undrain`),
        tellResult: (reply) => `${reply.name} is ${reply.state}`,
    });
}

function nodeAction(node) {
    const kept = node.state === 'draining' || node.state === 'drained';
    const gone = ['left', 'lost', 'forgotten'].includes(node.state);
    if (!mayAct() || gone) {
        return null;
    }
    return kept ? el('button', {onclick: () => undrainNode(node)}, 'Undrain…')
        : el('button', {onclick: () => drainNode(node)}, 'Drain…');
}

function drawNode(card, node) {
    const tone = NODE_TONES[node.state] || 'wait';
    card.replaceChildren(
        el('div.head', null, el('h2', null, node.name), badge(tone, node.state || 'unknown'),
            el('span.gap'), nodeAction(node)),
        node.reason ? el(`p.note.${tone === 'good' ? 'warn' : tone}`, null, node.reason) : '',
        el('p', null, slotsBar(node)),
        (node.gpus || []).length > 0 ? el('div.gpus', null,
            el('h3', null, `GPUs, ${node.gpus_used || 0} of ${node.gpus.length} used`),
            node.gpus.map(gpuRow)) : '',
        el('p.dim.small', null, [node.device, node.address || node.host,
            node.version && `version ${node.version}`,
            node.undying ? `${plural(node.undying, 'slot')} held by processes that don't die` : '']
            .filter(Boolean).join(' · ')));
}

/* Cards by name; one is made anew only where its node is another one, so that focus stays. */
function nodesView(holdings) {
    const grid = el('div.grid');
    const empty = el('p.empty', {hidden: true},
        prose('No node is here: `cairn up` starts one on a machine.'));
    const summary = el('p.dim');
    const cards = new Map();
    const refresh = () => {
        const nodes = store.nodes || [];
        const names = new Set(nodes.map((node) => node.name));
        cards.forEach((card, name) => {
            if (!names.has(name)) {
                card.remove();
                cards.delete(name);
            }
        });
        nodes.forEach((node) => {
            const card = cards.get(node.name) ||
                el('section.card.node', {'aria-label': node.name});
            const text = JSON.stringify([lasting(node), mayAct()]);
            card.usage = card.usage || new Facts('figures');
            if (card.shownText !== text) {
                card.shownText = text;
                drawNode(card, node);
                card.append(card.usage.element);
            }
            card.usage.set(usageFacts(node));
            cards.set(node.name, card);
            grid.append(card);
        });
        const sum = (field) => nodes.reduce((total, node) => total + (node[field] || 0), 0);
        setText(summary, nodes.length === 0 ? '' : `${plural(nodes.length, 'node')}, ` +
            `${formatCount(sum('used'))} of ${plural(sum('slots'), 'slot')} used`);
        setShown(empty, store.nodes !== null && nodes.length === 0);
    };
    listen(holdings, 'nodes', refresh);
    listen(holdings, 'session', refresh);
    refresh();
    return {
        title: 'Nodes',
        element: el('div.view', null,
            el('div.head', null, el('h1', null, 'Nodes'), summary), empty, grid),
    };
}

/* ---- system ---- */

function systemView(holdings) {
    const state = el('p');
    const coordinator = new Facts();
    const observer = new Facts();
    const you = new Facts();
    const refresh = async () => {
        const session = store.session || {};
        you.set({'Cluster': session.cluster, 'You are': session.actor,
            'You may': {operator: 'look and act', viewer: 'look'}[session.role]});
        try {
            const system = await ask('/system');
            const version = system.coordinator || {};
            const own = system.observer || {};
            state.replaceChildren(system.up ? badge('good', 'up') : badge('bad', 'not reached'));
            coordinator.set({'Version': version.version, 'Built from': version.git,
                'Process': version.pid, 'Agents': version.agents});
            observer.set({'Version': own.version, 'Running for': formatSeconds(own.uptime_s),
                'Connections': own.connections, 'Streams': own.streams,
                'Jobs listed': formatCount(store.jobs.size)});
        } catch (refusal) {
            state.replaceChildren(badge('bad', refusal.message));
        }
    };
    holdings.every(5, refresh);
    listen(holdings, 'session', refresh);
    refresh();
    return {
        title: 'System',
        element: el('div.view', null, el('h1', null, 'System'), el('div.grid', null,
            section('Coordinator', state, coordinator.element),
            section('This page', observer.element),
            section('Session', you.element))),
    };
}
