//! A checked tree as text, with matchers forced into every selector. This is the only way a custom query is ever written.

#![allow(clippy::disallowed_types, reason = "the parser gives the moment of `@` as a SystemTime; no clock is read")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use promql_parser::parser::{
    AggregateExpr, AtModifier, BinModifier, BinaryExpr, Call, Expr, LabelModifier, Offset, SubqueryExpr,
    VectorMatchCardinality, VectorSelector,
};

/// Matchers to put first into every selector.
#[derive(Clone, Debug)]
pub(crate) struct Forced(String);

impl Forced {
    /// No matcher: to compare trees.
    pub(super) fn none() -> Forced {
        Forced(String::new())
    }

    /// `label` is one of `namespaces` (at least one), and `further` hold too.
    pub(crate) fn new<'a>(
        label: &str,
        namespaces: &BTreeSet<String>,
        further: impl Iterator<Item = (&'a String, &'a String)>,
    ) -> Forced {
        let mut text = match namespaces.first() {
            Some(only) if namespaces.len() == 1 => format!("{label}={}", quote(only)),
            _ => format!("{label}=~{}", quote(&alternation(namespaces))),
        };
        for (name, value) in further {
            let _ = write!(text, ",{name}={}", quote(value));
        }
        Forced(text)
    }
}

/// A regular expression that matches exactly these texts.
pub(crate) fn alternation<'a>(texts: impl IntoIterator<Item = &'a String>) -> String {
    let escape = |text: &String| {
        text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
            if c.is_ascii() && !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_') {
                out.push('\\');
            }
            out.push(c);
            out
        })
    };
    texts.into_iter().map(escape).collect::<Vec<_>>().join("|")
}

/// A string literal that means exactly `text`, in Go's escapes.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

pub(super) fn render(expr: &Expr, forced: &Forced) -> String {
    let mut out = Out { text: String::new(), forced: &forced.0 };
    out.expr(expr);
    out.text
}

/// The distinct selectors as instant selectors, in order of appearance: without ranges and offsets, since they are asked how
/// fresh the series are; an `@` stays, since it does pin the data to a moment.
pub(super) fn selectors(expr: &Expr, forced: &Forced) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    visit(expr, &mut |selector| {
        let mut out = Out { text: String::new(), forced: &forced.0 };
        out.head(selector);
        out.modifiers(None, selector.at.as_ref());
        if !found.contains(&out.text) {
            found.push(out.text);
        }
    });
    found
}

/// Whether every selector has exactly the matcher that was forced.
pub(super) fn all_confined(expr: &Expr, label: &str, namespace: &str) -> bool {
    let mut confined = true;
    visit(expr, &mut |selector| {
        let own = selector.matchers.find_matchers(label);
        confined &= selector.matchers.or_matchers.is_empty()
            && matches!(own.as_slice(), [m] if m.op.to_string() == "=" && m.value == namespace);
    });
    confined
}

/// Calls `each` for every selector, in order of appearance.
pub(super) fn visit(expr: &Expr, each: &mut dyn FnMut(&VectorSelector)) {
    match expr {
        Expr::Aggregate(e) => {
            if let Some(param) = &e.param {
                visit(param, each);
            }
            visit(&e.expr, each);
        }
        Expr::Unary(e) => visit(&e.expr, each),
        Expr::Binary(e) => {
            visit(&e.lhs, each);
            visit(&e.rhs, each);
        }
        Expr::Paren(e) => visit(&e.expr, each),
        Expr::Subquery(e) => visit(&e.expr, each),
        Expr::VectorSelector(e) => each(e),
        Expr::MatrixSelector(e) => each(&e.vs),
        Expr::Call(e) => e.args.args.iter().for_each(|arg| visit(arg, each)),
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) | Expr::Extension(_) => {}
    }
}

struct Out<'f> {
    text: String,
    forced: &'f str,
}

impl Out<'_> {
    fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    fn expr(&mut self, expr: &Expr) {
        match expr {
            Expr::Aggregate(e) => self.aggregate(e),
            Expr::Unary(e) => {
                self.push("-");
                self.expr(&e.expr);
            }
            Expr::Binary(e) => self.binary(e),
            Expr::Paren(e) => {
                self.push("(");
                self.expr(&e.expr);
                self.push(")");
            }
            Expr::Subquery(e) => self.subquery(e),
            Expr::NumberLiteral(e) => self.number(e.val),
            Expr::StringLiteral(e) => self.push(&quote(&e.val)),
            Expr::VectorSelector(e) => {
                self.head(e);
                self.modifiers(e.offset.as_ref(), e.at.as_ref());
            }
            Expr::MatrixSelector(e) => {
                self.head(&e.vs);
                let _ = write!(self.text, "[{}]", duration(e.range));
                self.modifiers(e.vs.offset.as_ref(), e.vs.at.as_ref());
            }
            Expr::Call(e) => self.call(e),
            // Never made by the parser, and refused by `check`.
            Expr::Extension(_) => {}
        }
    }

    fn number(&mut self, value: f64) {
        if value.is_nan() {
            self.push("NaN");
        } else if value.is_infinite() {
            self.push(if value > 0.0 { "Inf" } else { "-Inf" });
        } else {
            let _ = write!(self.text, "{value}");
        }
    }

    fn aggregate(&mut self, e: &AggregateExpr) {
        let _ = write!(self.text, "{}", e.op);
        self.grouping(e.modifier.as_ref(), ["by", "without"]);
        self.push(" (");
        if let Some(param) = &e.param {
            self.expr(param);
            self.push(", ");
        }
        self.expr(&e.expr);
        self.push(")");
    }

    fn grouping(&mut self, modifier: Option<&LabelModifier>, [include, exclude]: [&str; 2]) {
        let (word, labels) = match modifier {
            Some(LabelModifier::Include(labels)) => (include, labels),
            Some(LabelModifier::Exclude(labels)) => (exclude, labels),
            None => return,
        };
        let _ = write!(self.text, " {word} ({})", labels.labels.join(", "));
    }

    fn binary(&mut self, e: &BinaryExpr) {
        self.expr(&e.lhs);
        let _ = write!(self.text, " {}", e.op);
        if let Some(modifier) = &e.modifier {
            self.matching(modifier);
        }
        self.push(" ");
        self.expr(&e.rhs);
    }

    fn matching(&mut self, modifier: &BinModifier) {
        if modifier.return_bool {
            self.push(" bool");
        }
        self.grouping(modifier.matching.as_ref(), ["on", "ignoring"]);
        let (word, labels) = match &modifier.card {
            VectorMatchCardinality::ManyToOne(labels) => ("group_left", labels),
            VectorMatchCardinality::OneToMany(labels) => ("group_right", labels),
            VectorMatchCardinality::OneToOne | VectorMatchCardinality::ManyToMany => return,
        };
        let _ = write!(self.text, " {word} ({})", labels.labels.join(", "));
    }

    fn subquery(&mut self, e: &SubqueryExpr) {
        self.expr(&e.expr);
        let step = e.step.map(duration).unwrap_or_default();
        let _ = write!(self.text, "[{}:{step}]", duration(e.range));
        self.modifiers(e.offset.as_ref(), e.at.as_ref());
    }

    fn call(&mut self, e: &Call) {
        self.push(e.func.name);
        self.push("(");
        for (i, arg) in e.args.args.iter().enumerate() {
            if i > 0 {
                self.push(", ");
            }
            self.expr(arg);
        }
        self.push(")");
    }

    fn head(&mut self, e: &VectorSelector) {
        if let Some(name) = &e.name {
            self.push(name);
        }
        let own = e.matchers.matchers.iter().map(|m| format!("{}{}{}", m.name, m.op, quote(&m.value)));
        let forced = Some(self.forced.to_owned()).filter(|text| !text.is_empty());
        let all: Vec<String> = forced.into_iter().chain(own).collect();
        if !all.is_empty() {
            let _ = write!(self.text, "{{{}}}", all.join(","));
        }
    }

    fn modifiers(&mut self, offset: Option<&Offset>, at: Option<&AtModifier>) {
        match at {
            Some(AtModifier::Start) => self.push(" @ start()"),
            Some(AtModifier::End) => self.push(" @ end()"),
            Some(AtModifier::At(time)) => {
                let (sign, since) = match time.duration_since(SystemTime::UNIX_EPOCH) {
                    Ok(after) => ("", after),
                    Err(before) => ("-", before.duration()),
                };
                let _ = write!(self.text, " @ {sign}{}.{:03}", since.as_secs(), since.subsec_millis());
            }
            None => {}
        }
        match offset {
            Some(Offset::Pos(by)) => {
                let _ = write!(self.text, " offset {}", duration(*by));
            }
            Some(Offset::Neg(by)) => {
                let _ = write!(self.text, " offset -{}", duration(*by));
            }
            None => {}
        }
    }
}

fn duration(d: Duration) -> String {
    format!("{}ms", d.as_millis())
}
