//! What a custom query may be. Everything is refused that is not known to stay inside its namespace.

use std::panic::catch_unwind;
use std::time::Duration;

use promql_parser::parser::value::ValueType;
use promql_parser::parser::{
    AggregateExpr, BinaryExpr, Call, Expr, LabelModifier, MatrixSelector, SubqueryExpr, VectorSelector,
};

use super::{Forced, MAX_QUERY_BYTES, MAX_SELECTORS, is_label_name, is_metric_name, locate, render};
use crate::error::QueryError;

/// Deepest nesting of a query's tree.
const MAX_DEPTH: usize = 100;
/// Furthest that a range, subquery or offset may reach.
const MAX_REACH: Duration = Duration::from_secs(30 * 86_400);
/// Most steps of a subquery, as in Prometheus' own limit on range queries.
const MAX_STEPS: u128 = 11_000;

/// Functions that give labels no reach beyond their arguments'. A list of what is allowed, so that a function added to
/// PromQL later is refused until it has been looked at. (`info` is not here: it reads series of its own accord.)
const FUNCTIONS: &[&str] = &[
    "abs",
    "absent",
    "absent_over_time",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "avg_over_time",
    "ceil",
    "changes",
    "clamp",
    "clamp_max",
    "clamp_min",
    "cos",
    "cosh",
    "count_over_time",
    "day_of_month",
    "day_of_week",
    "day_of_year",
    "days_in_month",
    "deg",
    "delta",
    "deriv",
    "double_exponential_smoothing",
    "exp",
    "floor",
    "histogram_avg",
    "histogram_count",
    "histogram_fraction",
    "histogram_quantile",
    "histogram_stddev",
    "histogram_stdvar",
    "histogram_sum",
    "hour",
    "idelta",
    "increase",
    "irate",
    "label_join",
    "label_replace",
    "last_over_time",
    "ln",
    "log10",
    "log2",
    "mad_over_time",
    "max_over_time",
    "min_over_time",
    "minute",
    "month",
    "pi",
    "predict_linear",
    "present_over_time",
    "quantile_over_time",
    "rad",
    "rate",
    "resets",
    "round",
    "scalar",
    "sgn",
    "sin",
    "sinh",
    "sort",
    "sort_desc",
    "sqrt",
    "stddev_over_time",
    "stdvar_over_time",
    "sum_over_time",
    "tan",
    "tanh",
    "time",
    "timestamp",
    "vector",
    "year",
];

/// Parses with the limits that keep the parser itself out of trouble.
pub(super) fn parse(query: &str) -> Result<Expr, QueryError> {
    let refuse = |reason: String, position| Err(QueryError { reason, position });
    if query.trim().is_empty() {
        return refuse("the query is empty".to_owned(), None);
    }
    // Room for what rewriting adds to a query at the limit.
    if query.len() > 4 * MAX_QUERY_BYTES {
        return refuse(format!("the query is longer than {MAX_QUERY_BYTES} bytes"), None);
    }
    if let Some(position) = too_deep(query) {
        return refuse(format!("the query nests deeper than {MAX_DEPTH}"), Some(position));
    }
    // The parser panics on some durations (`x[1e300]`); that has to stay an error of this query.
    match catch_unwind(|| promql_parser::parser::parse(query)) {
        Ok(Ok(expr)) => Ok(expr),
        Ok(Err(message)) => {
            let flaw = locate::flaw(query);
            let position = flaw.map(|f| f.0).or_else(|| quoted(&message).and_then(|w| locate::word(query, w)));
            let what = flaw.map(|f| format!(": {}", f.1)).unwrap_or_default();
            refuse(format!("not a PromQL query: {message}{what}"), position)
        }
        Err(_) => refuse("not a PromQL query: a number or duration is out of range".to_owned(), None),
    }
}

/// What the parser's message quotes.
fn quoted(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once('\'')?;
    rest.split_once('\'').map(|(word, _)| word)
}

/// Brackets and signs nest the tree, and the tree is walked and dropped recursively: both are bounded before parsing.
fn too_deep(query: &str) -> Option<(usize, usize)> {
    let (mut depth, mut signs) = (0_usize, 0_usize);
    for (offset, c) in query.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            '+' | '-' => signs += 1,
            _ => {}
        }
        if depth > MAX_DEPTH || signs > 4 * MAX_DEPTH {
            return Some(locate::line_column(query, offset));
        }
    }
    None
}

/// Checks every node of a query for the label it is to be confined by.
pub(super) fn check(query: &str, expr: &Expr, label: &str) -> Result<(), QueryError> {
    let checker = Checker { query, label };
    if query.len() > MAX_QUERY_BYTES {
        return Err(QueryError { reason: format!("the query is longer than {MAX_QUERY_BYTES} bytes"), position: None });
    }
    checker.expr(expr, 0)?;
    let selectors = render::selectors(expr, &Forced::none()).len();
    if selectors > MAX_SELECTORS {
        let reason =
            format!("the query has {selectors} different selectors, more than {MAX_SELECTORS}: record a rule for it");
        return Err(QueryError { reason, position: None });
    }
    let kind = expr.value_type();
    if !matches!(kind, ValueType::Vector | ValueType::Scalar) {
        let reason =
            format!("the query gives a {kind}; a signal needs one value per series: wrap it, as in avg_over_time(...)");
        return Err(QueryError { reason, position: None });
    }
    Ok(())
}

struct Checker<'q> {
    query: &'q str,
    label: &'q str,
}

impl Checker<'_> {
    fn refuse(&self, word: &str, reason: String) -> QueryError {
        QueryError { reason, position: locate::word(self.query, word) }
    }

    fn expr(&self, expr: &Expr, depth: usize) -> Result<(), QueryError> {
        if depth > MAX_DEPTH {
            return Err(QueryError { reason: format!("the query nests deeper than {MAX_DEPTH}"), position: None });
        }
        let depth = depth + 1;
        match expr {
            Expr::NumberLiteral(_) | Expr::StringLiteral(_) => Ok(()),
            Expr::Unary(e) => self.expr(&e.expr, depth),
            Expr::Paren(e) => self.expr(&e.expr, depth),
            Expr::Aggregate(e) => self.aggregate(e, depth),
            Expr::Binary(e) => self.binary(e, depth),
            Expr::Subquery(e) => self.subquery(e, depth),
            Expr::VectorSelector(e) => self.selector(e),
            Expr::MatrixSelector(e) => self.matrix(e),
            Expr::Call(e) => self.call(e, depth),
            Expr::Extension(_) => Err(QueryError { reason: "unknown syntax".to_owned(), position: None }),
        }
    }

    fn aggregate(&self, e: &AggregateExpr, depth: usize) -> Result<(), QueryError> {
        self.labels(e.modifier.as_ref())?;
        let op = e.op.to_string();
        if op == "limitk" || op == "limit_ratio" {
            return Err(
                self.refuse(&op, format!("{op} picks series at random: a signal has to be the same for the same data"))
            );
        }
        if let Some(param) = &e.param {
            if op == "count_values" {
                self.written_label(param)?;
            }
            self.expr(param, depth)?;
        }
        self.expr(&e.expr, depth)
    }

    fn binary(&self, e: &BinaryExpr, depth: usize) -> Result<(), QueryError> {
        if let Some(modifier) = &e.modifier {
            self.labels(modifier.matching.as_ref())?;
            if modifier.fill_values.lhs.is_some() || modifier.fill_values.rhs.is_some() {
                return Err(
                    self.refuse("fill", "fill is not supported: absent data must not become numbers".to_owned())
                );
            }
            for name in modifier.card.labels().map(|l| l.labels.as_slice()).unwrap_or_default() {
                self.label_name(name)?;
                if name == self.label {
                    return Err(self
                        .refuse(name, format!("group_left or group_right can't copy the label {name}: match on it")));
                }
            }
        }
        self.expr(&e.lhs, depth)?;
        self.expr(&e.rhs, depth)
    }

    fn subquery(&self, e: &SubqueryExpr, depth: usize) -> Result<(), QueryError> {
        self.reach(e.range, true)?;
        if let Some(step) = e.step {
            self.reach(step, true)?;
            if e.range.as_millis() / step.as_millis().max(1) > MAX_STEPS {
                let reason = format!("a subquery of more than {MAX_STEPS} steps: make its step longer");
                return Err(QueryError { reason, position: locate::word(self.query, ":") });
            }
        }
        self.offset(e.offset.as_ref())?;
        self.expr(&e.expr, depth)
    }

    fn matrix(&self, e: &MatrixSelector) -> Result<(), QueryError> {
        self.reach(e.range, true)?;
        self.selector(&e.vs)
    }

    fn selector(&self, e: &VectorSelector) -> Result<(), QueryError> {
        if !e.matchers.or_matchers.is_empty() {
            return Err(self.refuse("or", "`or` between matchers is no PromQL of Prometheus: use =~\"a|b\"".to_owned()));
        }
        let mut names = 0;
        for matcher in &e.matchers.matchers {
            self.label_name(&matcher.name)?;
            if matcher.name == self.label {
                let reason = format!(
                    "the operator adds {}=\"<the job's namespace>\" to every selector itself: leave that label out",
                    self.label
                );
                return Err(self.refuse(self.label, reason));
            }
            if matcher.name == "__name__" {
                names += 1;
                if matcher.op.to_string() != "=" || !is_metric_name(&matcher.value) {
                    let reason =
                        "a selector has to name its one metric: __name__ with a pattern may read everything".to_owned();
                    return Err(self.refuse("__name__", reason));
                }
            }
        }
        match &e.name {
            Some(name) if !is_metric_name(name) => Err(self.refuse(
                name,
                format!("{name:?} is not a metric name that is supported: letters, digits, _ and : only"),
            )),
            None if names != 1 => {
                let first = e.matchers.matchers.first().map_or("{", |m| m.name.as_str());
                Err(self.refuse(first, "a selector has to name its metric, as in steps_total{job=\"x\"}".to_owned()))
            }
            _ => self.offset(e.offset.as_ref()),
        }
    }

    fn call(&self, e: &Call, depth: usize) -> Result<(), QueryError> {
        let name = e.func.name;
        if !FUNCTIONS.contains(&name) {
            let why =
                if name == "info" { "it adds labels from series of other namespaces" } else { "it is experimental" };
            return Err(self.refuse(name, format!("the function {name} is not allowed in a signal: {why}")));
        }
        if matches!(name, "label_replace" | "label_join") {
            match e.args.args.get(1) {
                Some(destination) => self.written_label(destination)?,
                None => return Err(self.refuse(name, format!("{name} needs a label to write"))),
            }
        }
        e.args.args.iter().try_for_each(|arg| self.expr(arg, depth))
    }

    /// A label that the query itself writes: not the one that says whose data it is.
    fn written_label(&self, argument: &Expr) -> Result<(), QueryError> {
        match argument {
            Expr::StringLiteral(s) if s.val == self.label || s.val == "__name__" => {
                Err(self.refuse(&s.val, format!("the label {} can't be written: it says whose data it is", s.val)))
            }
            Expr::StringLiteral(s) => self.label_name(&s.val),
            _ => Err(QueryError { reason: "the label to write has to be a plain string".to_owned(), position: None }),
        }
    }

    fn labels(&self, modifier: Option<&LabelModifier>) -> Result<(), QueryError> {
        modifier.map(|m| m.labels().labels.as_slice()).unwrap_or_default().iter().try_for_each(|l| self.label_name(l))
    }

    fn label_name(&self, name: &str) -> Result<(), QueryError> {
        if is_label_name(name) {
            Ok(())
        } else {
            Err(self
                .refuse(name, format!("{name:?} is not a label name that is supported: letters, digits and _ only")))
        }
    }

    fn offset(&self, offset: Option<&promql_parser::parser::Offset>) -> Result<(), QueryError> {
        use promql_parser::parser::Offset::{Neg, Pos};
        match offset {
            Some(Pos(by) | Neg(by)) => self.reach(*by, false),
            None => Ok(()),
        }
    }

    fn reach(&self, d: Duration, positive: bool) -> Result<(), QueryError> {
        if d > MAX_REACH || !d.subsec_nanos().is_multiple_of(1_000_000) || (positive && d.is_zero()) {
            let reason =
                "a range, step or offset has to be whole milliseconds, above zero and at most 30 days".to_owned();
            return Err(QueryError { reason, position: locate::word(self.query, "[") });
        }
        Ok(())
    }
}
