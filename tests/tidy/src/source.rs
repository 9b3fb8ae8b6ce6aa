//! One file of production code: its lines, and what it declares.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// What a file declares, outside of tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// Lines that have a token, without those of comments and tests.
    pub lines: usize,
    /// Fields of each struct that is neither a wire format nor a command line.
    pub fields: BTreeMap<String, usize>,
    /// Names of structs, enums, unions, traits and aliases, one for each declaration.
    pub types: Vec<String>,
    /// Types that have an inherent `impl`.
    pub implemented: BTreeSet<String>,
    /// Modules in files of their own that exist in tests only.
    pub test_modules: BTreeSet<String>,
}

/// Derives of types whose fields another program gives or reads.
const FORMATS: [&str; 8] = [
    "Serialize",
    "Deserialize",
    "FromBytes",
    "IntoBytes",
    "TryFromBytes",
    "Args",
    "Parser",
    "Subcommand",
];

impl Source {
    /// Reads the text of a file.
    pub fn parse(text: &str) -> syn::Result<Self> {
        let file = syn::parse_file(text)?;
        let mut visitor = Visitor::default();
        visitor.visit_file(&file);
        let Visitor { mut source, tests } = visitor;
        let mut lines = BTreeSet::new();
        add_lines(text.parse()?, &mut lines);
        lines.retain(|line| !tests.iter().any(|test| test.contains(line)));
        source.lines = lines.len();
        Ok(source)
    }
}

/// Adds the lines of all tokens but those of doc comments.
fn add_lines(tokens: TokenStream, lines: &mut BTreeSet<usize>) {
    let mut attribute = Vec::new();
    for token in tokens {
        // `#` and `!` wait for what follows: a comment is `#[doc = "..."]`.
        match &token {
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                lines.extend(std::mem::take(&mut attribute));
                attribute.extend(of(token.span()));
                continue;
            }
            TokenTree::Punct(punct) if punct.as_char() == '!' && !attribute.is_empty() => {
                attribute.extend(of(token.span()));
                continue;
            }
            TokenTree::Group(group) if !attribute.is_empty() && is_doc(&group.stream()) => {
                attribute.clear();
                continue;
            }
            _ => lines.extend(std::mem::take(&mut attribute)),
        }
        match &token {
            TokenTree::Group(group) => {
                lines.extend(of(group.span_open()));
                lines.extend(of(group.span_close()));
                add_lines(group.stream(), lines);
            }
            other => lines.extend(of(other.span())),
        }
    }
}

fn is_doc(attribute: &TokenStream) -> bool {
    let first = attribute.clone().into_iter().next();
    matches!(first, Some(TokenTree::Ident(name)) if name == "doc")
}

fn of(span: Span) -> RangeInclusive<usize> {
    span.start().line..=span.end().line
}

#[derive(Default)]
struct Visitor {
    source: Source,
    /// Lines of items that exist in tests only.
    tests: Vec<RangeInclusive<usize>>,
}

impl<'ast> Visit<'ast> for Visitor {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if attributes(item).iter().any(is_of_tests) {
            // With its attributes.
            self.tests.push(of(item.span()));
            if let syn::Item::Mod(module) = item
                && module.content.is_none()
            {
                self.source.test_modules.insert(module.ident.to_string());
            }
            return;
        }
        let name = match item {
            syn::Item::Struct(item) => {
                if !has_format(&item.attrs) {
                    self.source.fields.insert(item.ident.to_string(), item.fields.len());
                }
                Some(&item.ident)
            }
            syn::Item::Enum(item) => Some(&item.ident),
            syn::Item::Union(item) => Some(&item.ident),
            syn::Item::Trait(item) => Some(&item.ident),
            syn::Item::Type(item) => Some(&item.ident),
            _ => None,
        };
        self.source.types.extend(name.map(ToString::to_string));
        if let syn::Item::Impl(item) = item
            && item.trait_.is_none()
            && let syn::Type::Path(path) = &*item.self_ty
            && let Some(last) = path.path.segments.last()
        {
            self.source.implemented.insert(last.ident.to_string());
        }
        visit::visit_item(self, item);
    }
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Union(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// `#[test]`, or a `#[cfg(...)]` that names `test` outside of `not`.
fn is_of_tests(attribute: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return attribute.path().is_ident("test") };
    list.path.is_ident("cfg") && names_test(list.tokens.clone())
}

fn names_test(tokens: TokenStream) -> bool {
    let mut is_negated = false;
    for token in tokens {
        match token {
            TokenTree::Ident(name) if name == "test" => return true,
            TokenTree::Ident(name) => is_negated = name == "not",
            TokenTree::Group(group) if !is_negated && names_test(group.stream()) => return true,
            _ => is_negated = false,
        }
    }
    false
}

fn has_format(attributes: &[syn::Attribute]) -> bool {
    let derives = attributes.iter().filter(|one| one.path().is_ident("derive"));
    let mut names = derives.flat_map(|one| match &one.meta {
        syn::Meta::List(list) => list.tokens.clone().into_iter().collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    names.any(|token| FORMATS.contains(&token.to_string().as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"//! About.

/// A comment.
pub struct Pair {
    /// The one.
    a: u8, // and more
    b: u8,
}

#[derive(Serialize)]
struct Wire {
    a: u8,
}

impl Pair {
    fn text() -> &'static str {
        "two
lines"
    }
}

impl Clone for Pair {}

#[cfg(not(test))]
type Alias = u8;

#[cfg(all(test, unix))]
mod tests {
    struct Hidden;
}

#[cfg(test)]
mod model;
"#;

    #[test]
    fn production_is_counted_without_comments_and_tests() {
        let source = Source::parse(TEXT).unwrap();
        assert_eq!(source.lines, 4 + 4 + 6 + 1 + 2);
        assert_eq!(source.fields, [("Pair".to_owned(), 2)].into());
        assert_eq!(source.types, ["Pair", "Wire", "Alias"]);
        assert_eq!(source.implemented, ["Pair".to_owned()].into());
        assert_eq!(source.test_modules, ["model".to_owned()].into());
    }
}
