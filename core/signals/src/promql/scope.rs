//! Whether one request can serve many namespaces, and the form in which it can.

use promql_parser::parser::value::ValueType;
use promql_parser::parser::{AggregateExpr, BinaryExpr, Call, Expr, LabelModifier};

/// The query with the namespace kept wherever it would be dropped: in groups (`sum(x)` becomes `sum by (namespace) (x)`) and in
/// what series are matched on.
///
/// Within one namespace all series have the same value of that label, so where every part of the query has it (see
/// [`keeps_namespace`]), to group and to match by it too changes nothing but the result's labels.
pub(super) fn keeping(expr: &Expr, label: &str) -> Expr {
    let mut expr = expr.clone();
    keep(&mut expr, label);
    expr
}

fn keep(expr: &mut Expr, label: &str) {
    match expr {
        Expr::Aggregate(e) => {
            match e.modifier.get_or_insert_with(|| LabelModifier::include(Vec::new())) {
                LabelModifier::Include(labels) => add(&mut labels.labels, label),
                LabelModifier::Exclude(labels) => labels.labels.retain(|l| l != label),
            }
            keep(&mut e.expr, label);
        }
        Expr::Binary(e) => {
            match e.modifier.as_mut().and_then(|m| m.matching.as_mut()) {
                Some(LabelModifier::Include(labels)) => add(&mut labels.labels, label),
                Some(LabelModifier::Exclude(labels)) => labels.labels.retain(|l| l != label),
                None => {}
            }
            keep(&mut e.lhs, label);
            keep(&mut e.rhs, label);
        }
        Expr::Unary(e) => keep(&mut e.expr, label),
        Expr::Paren(e) => keep(&mut e.expr, label),
        Expr::Subquery(e) => keep(&mut e.expr, label),
        Expr::Call(e) => e.args.args.iter_mut().for_each(|arg| keep(arg, label)),
        Expr::VectorSelector(_)
        | Expr::MatrixSelector(_)
        | Expr::NumberLiteral(_)
        | Expr::StringLiteral(_)
        | Expr::Extension(_) => {}
    }
}

fn add(labels: &mut Vec<String>, label: &str) {
    if labels.iter().all(|l| l != label) {
        labels.push(label.to_owned());
    }
}

/// True only if, with a matcher of several namespaces in each selector, the result is the union of what the query gives for
/// each namespace alone, and every series of it says its namespace. False is always safe: it costs a request per namespace.
pub(super) fn keeps_namespace(expr: &Expr, label: &str) -> bool {
    match expr {
        Expr::VectorSelector(_) | Expr::MatrixSelector(_) => true,
        Expr::Paren(e) => keeps_namespace(&e.expr, label),
        Expr::Unary(e) => keeps_namespace(&e.expr, label),
        Expr::Subquery(e) => keeps_namespace(&e.expr, label),
        Expr::Aggregate(e) => aggregate(e, label),
        Expr::Binary(e) => binary(e, label),
        Expr::Call(e) => call(e, label),
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) | Expr::Extension(_) => false,
    }
}

/// Reads nothing, so that it means the same in every namespace.
fn is_constant(expr: &Expr) -> bool {
    let mut reads = false;
    super::render::visit(expr, &mut |_| reads = true);
    !reads
}

/// Whether groups formed by these labels never hold series of two namespaces.
fn separates(modifier: Option<&LabelModifier>, label: &str, without_any: bool) -> bool {
    match modifier {
        Some(LabelModifier::Include(labels)) => labels.labels.iter().any(|l| l == label),
        Some(LabelModifier::Exclude(labels)) => labels.labels.iter().all(|l| l != label),
        None => without_any,
    }
}

fn aggregate(e: &AggregateExpr, label: &str) -> bool {
    // Without by or without, all series are one group.
    separates(e.modifier.as_ref(), label, false)
        && keeps_namespace(&e.expr, label)
        && e.param.as_ref().is_none_or(|param| is_constant(param))
}

fn binary(e: &BinaryExpr, label: &str) -> bool {
    if is_constant(&e.lhs) || is_constant(&e.rhs) {
        // `x or vector(0)` adds a series without labels, and `x + vector(1)` matches by labels that one has not: only a
        // constant scalar leaves the other side as it is.
        let scalar = e.lhs.value_type() == ValueType::Scalar || e.rhs.value_type() == ValueType::Scalar;
        return scalar && (keeps_namespace(&e.lhs, label) || keeps_namespace(&e.rhs, label));
    }
    // Without on or ignoring, series match by all their labels.
    separates(e.modifier.as_ref().and_then(|m| m.matching.as_ref()), label, true)
        && keeps_namespace(&e.lhs, label)
        && keeps_namespace(&e.rhs, label)
}

fn call(e: &Call, label: &str) -> bool {
    match e.func.name {
        // Their labels come from the matchers or are none, whatever they read.
        "absent" | "absent_over_time" | "scalar" | "vector" => false,
        // All others give one series for each of their vector's, with its labels; further arguments have to be constant.
        _ => {
            let reading: Vec<_> = e.args.args.iter().filter(|arg| !is_constant(arg)).collect();
            matches!(reading.as_slice(), [only] if keeps_namespace(only, label))
        }
    }
}
