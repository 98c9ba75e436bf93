/*
 * The numbers of a job by step: as they come, bounded, each step once.
 *
 * A point stands for some consecutive steps: `step` is the last of them, `weight` how many. Of more
 * than POINTS_MAX points neighbours become one, so a spike stays in *_min and *_max.
 */
'use strict';

const POINTS_MAX = 2000;

const LAST = new Set(['step', 'generation', 'unix_seconds', 'epoch']);
const PHASES = ['data', 'forward', 'backward', 'communication', 'optimizer', 'snapshot'];

/* Of one column of two neighbours. */
function mergeValues(name, a, b) {
    const left = a[name];
    const right = b[name];
    if (!isNumber(left) || !isNumber(right)) {
        return isNumber(right) ? right : left;
    }
    if (LAST.has(name) || name.startsWith('eval_')) {
        return right;
    }
    if (name.endsWith('_min')) {
        return Math.min(left, right);
    }
    if (name.endsWith('_max')) {
        return Math.max(left, right);
    }
    return (left * a.weight + right * b.weight) / (a.weight + b.weight);
}

function mergePoints(a, b) {
    const merged = {};
    Object.keys({...a, ...b}).forEach((name) => {
        merged[name] = mergeValues(name, a, b);
    });
    merged.weight = a.weight + b.weight;
    return merged;
}

/* Columns as the server sends them, row by row. */
function rowsOf(columns) {
    const names = Object.keys(columns || {});
    return ((columns || {}).step || []).map((_, at) => {
        const row = {weight: 1};
        names.forEach((name) => {
            row[name] = columns[name][at];
        });
        row.loss_min = isNumber(row.loss_min) ? row.loss_min : row.loss;
        row.loss_max = isNumber(row.loss_max) ? row.loss_max : row.loss;
        return row;
    });
}

class Curves {
    constructor() {
        this.clear();
    }

    clear() {
        this.points = [];
        this.evals = [];  /* whose steps have no point yet */
        this.span = 1;    /* steps that a point takes before the next one begins */
        this.rows = 0;    /* of the job, in all */
        this.nextStep = 0;
        this.thinned = false;
    }

    get last() {
        return this.points[this.points.length - 1];
    }

    /* All of it, as reduced by the server. */
    replace(reply) {
        this.clear();
        this.points = rowsOf(reply.columns);
        this.points.forEach((point, at) => {
            point.weight = Math.max(1, point.step - (at > 0 ? this.points[at - 1].step : 0));
        });
        this.rows = reply.rows || this.points.length;
        this.span = Math.max(1, Math.round(this.rows / Math.max(1, this.points.length)));
        this.thinned = this.span > 1;
        this.nextStep = reply.next_step || (this.last ? this.last.step + 1 : 0);
        this.takeEvals(reply.evals);
        this.bound();
    }

    /* New rows, one for each step. Of a step that was there before, it and all after it are new. */
    append(reply) {
        rowsOf(reply.columns).forEach((row) => {
            this.cut(row.step);
            this.push(row);
            this.nextStep = row.step + 1;
        });
        this.rows = Math.max(this.rows, reply.rows || 0);
        this.takeEvals(reply.evals);
        this.bound();
    }

    cut(step) {
        while (this.last && this.last.step >= step) {
            this.points.pop();
        }
    }

    push(row) {
        const last = this.last;
        const joins = last && last.weight < this.span && last.generation === row.generation;
        if (joins) {
            this.points[this.points.length - 1] = mergePoints(last, row);
        } else {
            this.points.push(row);
        }
    }

    /* Each belongs to the point that its step is in. */
    takeEvals(evals) {
        ((evals || {}).step || []).forEach((step, at) => {
            this.evals.push({step, loss: evals.loss[at], accuracy: evals.accuracy[at]});
        });
        this.evals = this.evals.slice(-POINTS_MAX).filter((one) => {
            const point = this.points[this.find(one.step)];
            if (point) {
                point.eval_loss = one.loss;
                point.eval_accuracy = one.accuracy;
            }
            return !point;
        });
    }

    /* The first point that reaches the step. */
    find(step) {
        let low = 0;
        let high = this.points.length;
        while (low < high) {
            const middle = (low + high) >> 1;
            if (this.points[middle].step < step) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return low;
    }

    bound() {
        while (this.points.length > POINTS_MAX) {
            const merged = [];
            for (let at = 0; at < this.points.length; at += 2) {
                const [a, b] = [this.points[at], this.points[at + 1]];
                merged.push(b ? mergePoints(a, b) : a);
            }
            this.points = merged;
            this.span *= 2;
            this.thinned = true;
        }
    }

    /* Where the generation changed: [{step, generation}]. */
    restarts() {
        return this.points.filter((point, at) =>
            at > 0 && point.generation !== this.points[at - 1].generation)
            .map(({step, generation}) => ({step, generation}));
    }

    evaluations() {
        return this.points.filter((point) => isNumber(point.eval_loss)).map((point) => point.step);
    }
}

/* The running mean that forgets: 0 leaves all as it is, 0.99 follows slowly. */
function smoothed(values, factor) {
    let mean = 0;
    let weight = 0;
    return values.map((value) => {
        if (!isNumber(value)) {
            return null;
        }
        mean = factor * mean + (1 - factor) * value;
        weight = factor * weight + (1 - factor);
        return mean / weight;
    });
}

/* At most so many of them, evenly, the last one among them. */
function thinOut(list, most) {
    if (list.length <= most) {
        return list;
    }
    const every = list.length / most;
    return Array.from({length: most}, (_, at) => list[Math.ceil((at + 1) * every) - 1]);
}
