/*
 * Curves by step, drawn by dygraphs: bands, marks, log scale, smoothing, and the same as a table.
 *
 * A chart draws `points` (objects with a `step`), each line by its own value(point). The charts of
 * a group share points, cursor, zoom and switches. A chart that isn't in sight isn't drawn.
 */
'use strict';

const REDRAW_MS = 400;
const TABLE_ROWS_MAX = 100;
const TABLE_MS = 5000;
const LABEL_APART = 22; /* pixels between the names of two marks */

const MARK_KINDS = [
    {id: 'restarts', title: 'restarts', sign: '┊', color: '--warn'},
    {id: 'saves', title: 'checkpoints', sign: '◆', color: '--muted'},
    {id: 'evals', title: 'evaluations', sign: '╷', color: '--c2'},
];

/* Of a line, among those that dygraphs draws: a title may be any text, as the name of a job is. */
const seriesName = (at) => `s${at}`;

const signOf = ({color, sign}) =>
    el('span.sign', {'aria-hidden': 'true', style: {color: `var(${color})`}}, sign);

const cssColor = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/* ---- data ---- */

/* What dygraphs draws of a line: its values; with low and high where the chart has a band. */
function lineValues(line, points, factor) {
    const raw = points.map((point) => {
        const value = line.value(point);
        return isNumber(value) ? value : null;
    });
    return factor > 0 && line.smooth ? smoothed(raw, factor) : raw;
}

function bandValues(line, points, values) {
    return values.map((value, at) => {
        const [low, high] = (line.band && line.band(points[at])) || [value, value];
        return [isNumber(low) ? Math.min(low, value) : value, value,
            isNumber(high) ? Math.max(high, value) : value];
    });
}

/* The row of the point whose step is next to that one. */
function nearestRow(points, step) {
    let [low, high] = [0, points.length - 1];
    while (low < high) {
        const middle = (low + high) >> 1;
        if (points[middle].step < step) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const before = low > 0 && step - points[low - 1].step < points[low].step - step;
    return before ? low - 1 : low;
}

/* ---- marks ---- */

/* state.labelled: where the newest name is. */
function drawRestart(context, area, x, label, state) {
    context.strokeStyle = state.color;
    context.fillStyle = state.color;
    context.globalAlpha = 0.8;
    context.setLineDash([3, 3]);
    context.beginPath();
    context.moveTo(x, area.y);
    context.lineTo(x, area.y + area.h);
    context.stroke();
    context.setLineDash([]);
    context.globalAlpha = 1;
    if (x - state.labelled >= LABEL_APART) {
        context.fillText(label, x + 3, area.y + 10);
        state.labelled = x;
    }
}

function drawDiamond(context, area, x, color) {
    const y = area.y + area.h - 5;
    context.fillStyle = color;
    context.beginPath();
    context.moveTo(x, y - 4);
    context.lineTo(x + 3, y);
    context.lineTo(x, y + 4);
    context.lineTo(x - 3, y);
    context.fill();
}

function drawTick(context, area, x, color) {
    context.strokeStyle = color;
    context.globalAlpha = 0.35;
    context.beginPath();
    context.moveTo(x, area.y + area.h - 12);
    context.lineTo(x, area.y + area.h);
    context.stroke();
    context.globalAlpha = 1;
}

/* ---- a chart ---- */

/*
 * new Chart({title, unit, lines, stacked, log, zero, format, group})
 *
 * lines: [{title, color: a CSS variable, value(point), band(point) → [low, high],
 *          smooth: it can be, dots: few values, far apart, sparse: not at every point, dash}]
 */
class Chart {
    constructor(options) {
        Object.assign(this, {points: [], format: formatNumber}, options);
        Object.assign(this, {graph: null, selected: null, inSight: false, asTable: false});
        this.readout = el('p.readout');
        this.plot = el('div.plot', {role: 'img', 'aria-label': this.title});
        this.fallback = el('div.fallback', {hidden: true});
        this.zoomOut = el('button.quiet', {hidden: true, onclick: () => this.group.zoom(null)},
            'whole range');
        this.tableButton = el('button.quiet', {
            'aria-pressed': 'false', 'aria-label': `${this.title}: as table`,
            onclick: () => this.toggleTable(),
        }, 'as table');
        this.element = el('figure.chart.card', null,
            el('figcaption', null, el('h3', null, this.title,
                this.unit && el('span.unit', null, this.unit)), this.zoomOut, this.tableButton),
            this.readout, this.plot, this.fallback);
        this.watchSight();
    }

    watchSight() {
        this.sight = new IntersectionObserver(([entry]) => {
            this.inSight = entry.isIntersecting;
            this.draw();
        }, {rootMargin: '200px'});
        this.sight.observe(this.element);
        this.size = new ResizeObserver(() => this.graph && this.graph.resize());
        this.size.observe(this.plot);
    }

    close() {
        this.sight.disconnect();
        this.size.disconnect();
        if (this.graph) {
            this.graph.destroy();
            this.graph = null;
        }
    }

    toggleTable() {
        this.asTable = !this.asTable;
        setAttribute(this.tableButton, 'aria-pressed', String(this.asTable));
        setShown(this.plot, !this.asTable);
        setShown(this.fallback, this.asTable);
        this.tableUntil = 0;
        this.draw();
    }

    /* The lines as they are drawn: of a smoothed one also the values as they were, faintly. */
    drawnLines() {
        const factor = this.stacked ? 0 : this.group.smoothing;
        if (factor === 0) {
            return this.lines;
        }
        const raw = this.lines.filter((line) => line.smooth && !line.band)
            .map((line) => ({...line, title: `${line.title}, each`, smooth: false, faint: true}));
        return [...raw, ...this.lines];
    }

    data(lines) {
        const bands = !this.stacked && lines.some((line) => line.band);
        const columns = lines.map((line) => {
            const values = lineValues(line, this.points, this.stacked ? 0 : this.group.smoothing);
            return bands ? bandValues(line, this.points, values) : values;
        });
        return this.points.map((point, at) => [point.step, ...columns.map((column) => column[at])]);
    }

    /* Nothing below or at zero has a logarithm: then the scale stays as it was. */
    isLog() {
        return Boolean(this.log && this.group.log) && this.points.some((point) =>
            this.lines.some((line) => line.value(point) > 0));
    }

    options(lines) {
        const axis = {axisLineColor: cssColor('--line'), gridLineColor: cssColor('--grid')};
        const series = {};
        lines.forEach((line, at) => {
            series[seriesName(at)] = {
                strokeWidth: line.faint ? 1 : 1.6,
                connectSeparatedPoints: Boolean(line.dots || line.sparse),
                drawPoints: Boolean(line.dots), pointSize: 2.5,
                strokePattern: line.dash || null,
            };
        });
        return {
            labels: ['step', ...lines.map((line, at) => seriesName(at))],
            colors: lines.map((line) => cssColor(line.color) + (line.faint ? '55' : '')),
            series,
            customBars: !this.stacked && lines.some((line) => line.band),
            stackedGraph: Boolean(this.stacked), fillGraph: Boolean(this.stacked),
            fillAlpha: this.stacked ? 0.75 : 0.16,
            logscale: this.isLog(), includeZero: Boolean(this.zero) && !this.isLog(),
            axes: {
                x: {...axis, drawGrid: false, axisLabelFormatter: (value) => formatCount(value),
                    pixelsPerLabel: Math.min(70, Math.max(40, this.plot.clientWidth / 8))},
                y: {...axis, axisLabelWidth: 52,
                    axisLabelFormatter: (value) => this.format(value, 3)},
            },
        };
    }

    fixedOptions() {
        return {
            legend: 'never', showLabelsOnHighlight: false, interactionModel: this.touches(),
            axisLabelFontSize: 11, highlightCircleSize: 3,
            rightGap: 10, xRangePad: 4, yRangePad: 14, /* room for the marks' names */
            highlightCallback: (event, x, drawn, row) => this.group.select(row),
            unhighlightCallback: () => this.group.select(null),
            zoomCallback: (low, high) => this.group.zoom([low, high]),
            underlayCallback: (context, area, graph) => this.drawMarks(context, area, graph),
        };
    }

    /* One finger reads a point, and scrolls the page where it goes up or down; two zoom. */
    touches() {
        const model = {...Dygraph.defaultInteractionModel};
        const {touchstart, touchmove, touchend} = model;
        const read = (event) => {
            const at = event.touches[0].clientX - this.plot.getBoundingClientRect().left;
            const step = this.graph.toDataXCoord(at);
            this.group.select(nearestRow(this.points, step));
        };
        model.touchstart = (event, graph, context) => {
            context.pinches = event.touches.length > 1;
            (context.pinches ? touchstart : read)(event, graph, context);
        };
        model.touchmove = (event, graph, context) => {
            (context.pinches ? touchmove : read)(event, graph, context);
        };
        model.touchend = (event, graph, context) => {
            if (context.pinches) {
                touchend(event, graph, context);
            }
        };
        return model;
    }

    draw() {
        const seen = this.inSight && this.element.isConnected && !document.hidden;
        if (this.points.length > 0 && seen) {
            if (this.asTable) {
                this.drawTable();
            } else {
                this.drawPlot();
            }
        }
        this.tell();
    }

    drawPlot() {
        const lines = this.drawnLines();
        const options = {...this.options(lines), dateWindow: this.group.window};
        const file = this.data(lines);
        if (this.graph) {
            this.graph.updateOptions({...options, file});
        } else {
            this.graph = new Dygraph(this.plot, file, {...options, ...this.fixedOptions()});
        }
        setAttribute(this.plot, 'aria-label', this.summary());
    }

    drawMarks(context, area, graph) {
        const seen = (step) => {
            const x = Math.round(graph.toDomXCoord(step)) + 0.5;
            return x >= area.x && x <= area.x + area.w ? x : null;
        };
        const each = (kind, draw) => (this.group.shows[kind] ? this.group.marks[kind] : [])
            .forEach((mark) => {
                const x = seen(mark.step);
                if (x !== null) {
                    draw(x, mark);
                }
            });
        context.save();
        context.lineWidth = 1;
        context.font = '10px system-ui, sans-serif';
        const state = {labelled: -LABEL_APART};
        const [failed, planned] = [cssColor('--warn'), cssColor('--muted')];
        each('evals', (x) => drawTick(context, area, x, cssColor('--c2')));
        each('saves', (x) => drawDiamond(context, area, x, cssColor('--muted')));
        each('restarts', (x, mark) => {
            state.color = mark.planned ? planned : failed;
            drawRestart(context, area, x, `g${mark.generation}`, state);
        });
        context.restore();
    }

    /* ---- the same in words ---- */

    summary() {
        const last = this.points.length - 1;
        const marks = this.group.marks.restarts.map((mark) => formatCount(mark.step));
        return `${this.title} by step, ${plural(this.points.length, 'point')} up to step ` +
            `${formatCount(this.points[last].step)}; ${this.valuesOf(last)}` +
            (marks.length > 0 ? `; restarts at step ${marks.join(', ')}` : '');
    }

    /* At a point; of a line that hasn't all of them, the newest one until there. */
    valueAt(line, row) {
        let at = row;
        while (at > 0 && (line.dots || line.sparse) && !isNumber(line.value(this.points[at]))) {
            at--;
        }
        return line.value(this.points[at]);
    }

    valuesOf(row) {
        return this.lines.map((line) => {
            const band = line.band && line.band(this.points[row]);
            const value = this.valueAt(line, row);
            const differs = band && isNumber(band[0]) && band[0] < band[1];
            return `${line.title} ${this.format(value)}` +
                (differs ? ` (${this.format(band[0])} to ${this.format(band[1])})` : '');
        }).join(' · ');
    }

    /* Of the point under the cursor, else of the newest one. */
    tell() {
        if (this.points.length === 0) {
            setText(this.readout, 'nothing yet');
            return;
        }
        const hovers = this.selected !== null && this.selected < this.points.length;
        const row = hovers ? this.selected : this.points.length - 1;
        const mark = hovers && this.group.markNear(row);
        const step = formatCount(this.points[row].step);
        this.readout.replaceChildren(el('span.dim', null, `step ${step}`),
            ...this.lines.map((line) => this.readLine(line, row)),
            mark ? el('span.mark', null, mark) : '');
    }

    readLine(line, row) {
        const value = this.valueAt(line, row);
        const only = this.lines.length === 1;
        const swatch = el('span.swatch', {style: {background: `var(${line.color})`}});
        return el('span.value', null, swatch, only ? '' : `${line.title} `,
            el('b', null, this.format(value)));
    }

    /* Who reads it isn't disturbed at every step. */
    drawTable() {
        if (performance.now() < this.tableUntil) {
            return;
        }
        this.tableUntil = performance.now() + TABLE_MS;
        const rows = thinOut(this.points, TABLE_ROWS_MAX).map((point) => [
            formatCount(point.step), formatCount(point.generation),
            ...this.lines.map((line) => this.format(line.value(point), 6))]);
        this.fallback.replaceChildren(plainTable(`${this.title} by step`,
            ['step', 'generation', ...this.lines.map((line) => line.title)], rows.reverse()));
    }
}

/* ---- charts that belong together ---- */

class ChartGroup {
    constructor(holdings) {
        Object.assign(this, {charts: [], points: [], log: false, smoothing: 0, window: null});
        this.marks = {restarts: [], saves: [], evals: []};
        this.shows = {restarts: true, saves: true, evals: true};
        this.redraw = braked(() => this.charts.forEach((chart) => chart.draw()), REDRAW_MS);
        const dark = matchMedia('(prefers-color-scheme: dark)');
        dark.addEventListener('change', this.redraw);
        document.addEventListener('visibilitychange', this.redraw);
        holdings.add(() => {
            dark.removeEventListener('change', this.redraw);
            document.removeEventListener('visibilitychange', this.redraw);
            this.redraw.stop();
            this.charts.forEach((chart) => chart.close());
        });
    }

    add(options) {
        const chart = new Chart({...options, group: this});
        this.charts.push(chart);
        return chart;
    }

    setPoints(points) {
        this.points = points;
        this.charts.forEach((chart) => {
            chart.points = points;
        });
        this.redraw();
    }

    select(row) {
        this.charts.forEach((chart) => {
            chart.selected = row;
            if (chart.graph && chart.inSight) {
                if (row === null) {
                    chart.graph.clearSelection();
                } else if (chart.graph.getSelection() !== row) {
                    chart.graph.setSelection(row);
                }
            }
            chart.tell();
        });
    }

    /* [low, high] of steps; null: all of them. */
    zoom(range) {
        const steps = this.points;
        const whole = range && steps.length > 0 &&
            range[0] <= steps[0].step && range[1] >= steps[steps.length - 1].step;
        this.window = whole ? null : range;
        this.charts.forEach((chart) => {
            setShown(chart.zoomOut, this.window !== null);
            if (chart.graph) {
                chart.graph.updateOptions(range ? {dateWindow: this.window}
                    : {dateWindow: null, valueRange: null});
            }
        });
    }

    /* What happened where the cursor is, in words. */
    markNear(row) {
        const from = row > 0 ? this.points[row - 1].step : -1;
        const to = this.points[row].step;
        const mark = this.marks.restarts.find(({step}) => step > from && step <= to);
        return mark ? mark.text || `generation ${mark.generation}` : null;
    }

    /* Log scale, smoothing, which of these marks are shown. */
    toolbar(kinds, ...more) {
        const slider = el('input', {
            type: 'range', min: 0, max: 0.98, step: 0.02, value: this.smoothing,
            'aria-label': 'smoothing',
            oninput: () => this.set({smoothing: Number(slider.value)}),
        });
        const check = (title, props, ...sign) =>
            el('label.check', null, el('input', {type: 'checkbox', ...props}), ...sign, title);
        return el('div.toolbar', {role: 'group', 'aria-label': 'How charts are drawn'},
            check('log scale', {onchange: (event) => this.set({log: event.target.checked})}),
            el('label.check', null, 'smoothing', slider),
            el('span.gap'),
            kinds.map((kind) => check(kind.title, {
                checked: true,
                onchange: (event) => {
                    this.shows[kind.id] = event.target.checked;
                    this.redraw();
                },
            }, signOf(kind))), ...more);
    }

    set(changes) {
        Object.assign(this, changes);
        this.redraw();
    }
}
