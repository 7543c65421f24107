//! Whether one request can serve many namespaces.

use promql_parser::parser::token::{T_LOR, T_LUNLESS};
use promql_parser::parser::{AggregateExpr, BinaryExpr, Call, Expr, LabelModifier};

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
        // `x or vector(0)` adds a series without labels.
        let set = matches!(e.op.id(), T_LOR | T_LUNLESS) || e.op.is_set_operator();
        return !set && (keeps_namespace(&e.lhs, label) || keeps_namespace(&e.rhs, label)) && is_scalar_side(e);
    }
    // Without on or ignoring, series match by all their labels.
    separates(e.modifier.as_ref().and_then(|m| m.matching.as_ref()), label, true)
        && keeps_namespace(&e.lhs, label)
        && keeps_namespace(&e.rhs, label)
}

/// A constant vector (`vector(1)`) matches by labels it has not; only a constant scalar leaves the other side as it is.
fn is_scalar_side(e: &BinaryExpr) -> bool {
    use promql_parser::parser::value::ValueType;
    e.lhs.value_type() == ValueType::Scalar || e.rhs.value_type() == ValueType::Scalar
}

fn call(e: &Call, label: &str) -> bool {
    match e.func.name {
        // Their labels come from the matchers or are none, whatever they read.
        "absent" | "absent_over_time" | "scalar" | "vector" => false,
        // All others give one series for each of their vector's, with its labels; further arguments have to be constant.
        _ => {
            let (reading, constant): (Vec<_>, Vec<_>) = e.args.args.iter().partition(|arg| !is_constant(arg));
            let _ = constant;
            matches!(reading.as_slice(), [only] if keeps_namespace(only, label))
        }
    }
}
