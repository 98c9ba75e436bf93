/*
 * Parts that pages are put together from: tables that follow live rows, dialogs, notices, tabs,
 * bars, lists of facts.
 */
'use strict';

const ROWS_AT_ONCE = 200; /* more on demand: a thousand live rows would keep a browser busy */
const NOTICE_MS = 8000;

/* ---- tables ---- */

/*
 * new Table({label, columns, key, open, selection, sort, empty})
 *
 * columns: [{id, title, text(row), draw(cell, row), sort(row), class}]. A cell is drawn anew only
 *          when its text is another one; without draw the text is what is shown.
 * key(row): by which a row is known again. open(row): Enter or a click. selection: a Set of keys.
 * sort: {id, down}, kept by the caller; without it rows stay in their order.
 */
class Table {
    constructor(options) {
        Object.assign(this, {rows: [], limit: ROWS_AT_ONCE, shown: new Map(), current: null,
            empty: 'Nothing here.'}, options);
        this.heads = this.columns.map((column) => this.makeHead(column));
        this.body = el('tbody', {role: 'rowgroup'});
        this.more = el('button.quiet.more', {onclick: () => this.showMore(), hidden: true});
        this.nothing = el('p.empty', {hidden: true});
        this.table = el('table', {role: 'table', 'aria-label': this.label},
            el('thead', {role: 'rowgroup'}, el('tr', {role: 'row'}, this.heads)), this.body);
        this.body.addEventListener('keydown', (event) => this.takeKey(event));
        this.element = el('div.table', null, scroller(this.label, this.table), this.nothing,
            this.more);
    }

    makeHead(column) {
        const props = {role: 'columnheader', scope: 'col'};
        const kind = `th.${column.class || ''}`.replace(/\.$/, '');
        if (!column.sort) {
            return el(kind, props, el('span', null, column.title));
        }
        return el(kind, props, el('button.sort', {onclick: () => this.sortBy(column.id)},
            column.title, el('span.arrow', {'aria-hidden': 'true'})));
    }

    sortBy(id) {
        this.sort.down = this.sort.id === id ? !this.sort.down : true;
        this.sort.id = id;
        this.update(this.rows);
    }

    showMore() {
        this.limit += ROWS_AT_ONCE;
        this.update(this.rows);
    }

    sorted(rows) {
        const column = this.sort && this.columns.find((one) => one.id === this.sort.id);
        if (!column || !column.sort) {
            return rows;
        }
        const sign = this.sort.down ? -1 : 1;
        const unknown = (value) => value === null || value === undefined || Number.isNaN(value);
        return rows.map((row) => [column.sort(row), row]).sort(([a], [b]) => {
            if (unknown(a) || unknown(b)) {
                return unknown(a) - unknown(b); /* what isn't known comes last either way */
            }
            return a < b ? -sign : a > b ? sign : 0;
        }).map(([, row]) => row);
    }

    update(rows) {
        this.rows = rows;
        const visible = this.sorted(rows).slice(0, this.limit);
        const keys = new Set(visible.map((row) => this.key(row)));
        this.shown.forEach((tr, key) => {
            if (!keys.has(key)) {
                tr.remove();
                this.shown.delete(key);
            }
        });
        visible.forEach((row, at) => this.place(row, at));
        this.heads.forEach((head, at) => this.showSort(head, this.columns[at]));
        setShown(this.more, rows.length > visible.length);
        setText(this.more, `Show more (${formatCount(rows.length - visible.length)} left)`);
        setShown(this.nothing, rows.length === 0);
        if (this.nothing.shownText !== this.empty) {
            this.nothing.shownText = this.empty;
            this.nothing.replaceChildren(...prose(this.empty));
        }
        setShown(this.table, rows.length > 0);
        this.rove();
    }

    place(row, at) {
        const key = this.key(row);
        const tr = this.shown.get(key) || this.makeRow(key);
        tr.row = row;
        this.columns.forEach((column, index) => {
            const cell = tr.cells[index];
            const text = column.text(row);
            if (cell.shownText !== text) {
                cell.shownText = text;
                if (column.draw) {
                    column.draw(cell, row);
                } else {
                    cell.textContent = text;
                }
            }
        });
        if (this.body.children[at] !== tr) {
            this.body.insertBefore(tr, this.body.children[at] || null);
        }
    }

    makeRow(key) {
        const cells = this.columns.map((column) => el(`td.${column.class || ''}`.replace(/\.$/, ''),
            {role: 'cell', 'data-title': column.title}));
        const tr = el('tr', {role: 'row', tabindex: -1}, cells);
        tr.addEventListener('focus', () => {
            this.current = key;
            this.rove();
        });
        if (this.open) {
            tr.classList.add('opens');
            tr.addEventListener('click', (event) => {
                const other = event.target.closest('a, button, input, label');
                if (!other && getSelection().isCollapsed) {
                    this.open(tr.row);
                }
            });
        }
        this.shown.set(key, tr);
        return tr;
    }

    showSort(head, column) {
        const mine = this.sort && column.sort && this.sort.id === column.id;
        const way = mine ? (this.sort.down ? 'descending' : 'ascending') : 'none';
        if (column.sort) {
            setAttribute(head, 'aria-sort', way);
        }
    }

    /* One row can be reached by Tab, the others by arrows. */
    rove() {
        const current = this.shown.has(this.current) ? this.shown.get(this.current)
            : this.body.firstElementChild;
        this.shown.forEach((tr) => setAttribute(tr, 'tabindex', tr === current ? '0' : '-1'));
    }

    /* By so many rows; from outside the table: to the row where it was. */
    move(by) {
        const rows = [...this.body.children];
        const at = rows.indexOf(document.activeElement.closest('tr'));
        const from = rows.findIndex((tr) => tr.getAttribute('tabindex') === '0');
        const to = at < 0 ? from : Math.min(rows.length - 1, Math.max(0, at + by));
        if (rows[to]) {
            rows[to].focus();
            rows[to].scrollIntoView({block: 'nearest'});
        }
    }

    takeKey(event) {
        const tr = event.target;
        if (tr.tagName !== 'TR' || event.ctrlKey || event.metaKey || event.altKey) {
            return;
        }
        const steps = {ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9};
        if (event.key in steps) {
            this.move(steps[event.key]);
        } else if (event.key === 'Enter' && this.open) {
            this.open(tr.row);
        } else if ((event.key === ' ' || event.key === 'x') && this.selection) {
            tr.querySelector('input[type=checkbox]').click();
        } else {
            return;
        }
        event.preventDefault();
    }
}

/* A table of what doesn't change. */
function plainTable(label, heads, rows) {
    const makeRow = (row) => el('tr', null, row.map((cell) => el('td', null, cell)));
    return scroller(label, el('table', {'aria-label': label},
        el('thead', null, el('tr', null, heads.map((head) => el('th', {scope: 'col'}, head)))),
        el('tbody', null, rows.map(makeRow))));
}

/* ---- dialogs and notices ---- */

/* Modal; resolves to true or the answer, to null where it was left. question: {label, max}. */
function openDialog({title, body, verb, danger, question}) {
    return new Promise((resolve) => {
        const input = question &&
            el('input', {type: 'text', maxlength: question.max, id: 'answer'});
        let result = null;
        const finish = (value) => {
            result = value;
            dialog.close();
        };
        const yes = () => finish(input ? input.value.trim() : true);
        const dialog = el('dialog', {'aria-labelledby': 'dialog-title'}, el('div.inner', null,
            el('h2', {id: 'dialog-title'}, title), body,
            input && el('label.question', {for: 'answer'}, question.label, input),
            el('div.buttons', null,
                el('button.quiet', {onclick: () => finish(null)}, verb ? 'Cancel' : 'Close'),
                verb && el(danger ? 'button.danger' : 'button.primary', {onclick: yes}, verb))));
        if (input) {
            input.addEventListener('keydown', (event) => event.key === 'Enter' && yes());
        }
        dialog.addEventListener('click', (event) => event.target === dialog && finish(null));
        dialog.addEventListener('close', () => {
            dialog.remove();
            resolve(result);
        });
        document.body.append(dialog);
        dialog.showModal();
    });
}

/* What came of something: read out by screen readers, gone after a while or by a click. */
function notify(text, tone = 'good') {
    const place = document.getElementById('notices');
    const notice = el(`div.notice.${tone}`, {role: tone === 'bad' ? 'alert' : 'status'},
        el('span.sign', {'aria-hidden': 'true'}, TONES[tone]), el('span', null, text),
        el('button.quiet', {'aria-label': 'Dismiss', onclick: () => notice.remove()}, '✕'));
    place.append(notice);
    while (place.children.length > 4) {
        place.firstElementChild.remove();
    }
    setTimeout(() => notice.remove(), tone === 'bad' ? 3 * NOTICE_MS : NOTICE_MS);
}

/* Asks, does it, says what came of it. perform(answer) and tellResult(reply) are the caller's. */
async function confirmAndAct({dialog, perform, tellResult}) {
    const answer = await openDialog(dialog);
    if (answer === null) {
        return;
    }
    try {
        notify(tellResult(await perform(answer)));
    } catch (refusal) {
        notify(`${dialog.verb}: ${refusal.message}`, 'bad');
    }
}

/* ---- tabs ---- */

/* tabs: [{id, title}]; choose(id) is called at a click or an arrow. */
function makeTabs(label, tabs, chosen, choose) {
    const buttons = tabs.map(({id, title}) => el('button', {
        role: 'tab', id: `tab-${id}`, 'aria-controls': 'panel', onclick: () => choose(id),
        'aria-selected': String(id === chosen), tabindex: id === chosen ? 0 : -1,
    }, title));
    const list = el('div.tabs', {role: 'tablist', 'aria-label': label}, buttons);
    list.addEventListener('keydown', (event) => {
        const by = {ArrowRight: 1, ArrowLeft: -1}[event.key];
        const at = buttons.indexOf(document.activeElement);
        if (by && at >= 0) {
            const next = (at + by + buttons.length) % buttons.length;
            choose(tabs[next].id);
            event.preventDefault();
        }
    });
    return list;
}

/* ---- bars, facts ---- */

function progressBar(part, label, tone = 'run') {
    const bar = el(`div.progress.${tone}`, {
        role: 'progressbar', 'aria-label': label, 'aria-valuemin': 0, 'aria-valuemax': 100,
    }, el('div.filled'));
    setProgress(bar, part, tone);
    return bar;
}

function setProgress(bar, part, tone) {
    bar.className = `progress ${tone}${part === null ? ' unknown' : ''}`;
    bar.firstElementChild.style.width = `${100 * (part || 0)}%`;
    if (part === null) {
        bar.removeAttribute('aria-valuenow');
    } else {
        setAttribute(bar, 'aria-valuenow', String(Math.floor(100 * part)));
    }
}

/* One bar in parts: [{title, value, color}]. */
function shareStrip(label, shares, format) {
    const known = shares.filter((share) => share.value > 0);
    const words = known.map((share) => `${share.title} ${format(share.value)}`);
    const grows = (share) => String(1e6 * share.value); /* less than 1 in all wouldn't fill it */
    const text = `${label}: ${words.join(', ') || 'nothing'}`;
    return el('div.strip', {role: 'img', 'aria-label': text}, known.map((share, at) => el('span', {
        title: words[at], style: {'flex-grow': grows(share), background: share.color},
    })));
}

/* The same, and below it what each part is. */
function sharesBar(label, shares, format) {
    const sum = shares.reduce((total, share) => total + share.value, 0);
    const known = shares.filter((share) => share.value > 0);
    return el('div.shares', null, shareStrip(label, shares, format),
        el('ul.legend', null, known.map((share) => el('li', null,
            el('span.swatch', {style: {background: share.color}}), share.title,
            el('b', null, format(share.value)),
            el('span.dim', null, formatPercent(share.value / sum))))));
}

/* A list of facts that is updated in place: set({title: text, …}). */
class Facts {
    constructor(kind = 'facts') {
        this.element = el(`dl.${kind}`);
        this.values = new Map();
    }

    set(facts) {
        Object.entries(facts).forEach(([title, text]) => {
            let value = this.values.get(title);
            if (!value) {
                value = el('dd');
                this.values.set(title, value);
                this.element.append(el('div', null, el('dt', null, title), value));
            }
            const plain = text === null || text === undefined || text === '';
            setText(value, plain ? NOTHING : String(text));
        });
    }
}

function section(title, ...children) {
    return el('section.card', {'aria-label': title}, el('h2', null, title), ...children);
}
