//! The `component-type` section of a core module: what a toolchain wrote of the world that the module implements.
//!
//! The encoder that reads it was made for sections of toolchains. It recurses over the packages that are named there and
//! never ends if they depend on each other, so it is given only what names the contract's package, in one version.

use wasmparser::{ComponentType, ComponentTypeDeclaration, ComponentTypeRef, InstanceTypeDeclaration, Parser, Payload};

use crate::inspect::PACKAGE;

/// Names the first interface that is not of the contract. `Ok` says nothing of whether the section is right.
pub(crate) fn check_names(component: &[u8]) -> Result<(), String> {
    let mut names = Names::default();
    for payload in Parser::new(0).parse_all(component) {
        match payload.map_err(|error| error.to_string())? {
            Payload::ComponentTypeSection(section) => {
                for ty in section {
                    names.of_type(&ty.map_err(|error| error.to_string())?)?;
                }
            }
            Payload::ComponentImportSection(section) => {
                for import in section {
                    names.add(import.map_err(|error| error.to_string())?.name.name)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// The names of interfaces seen so far, which have to agree on their version.
#[derive(Default)]
struct Names {
    version: Option<String>,
}

impl Names {
    /// Types lie in types no deeper than `inspect` lets through.
    fn of_type(&mut self, ty: &ComponentType<'_>) -> Result<(), String> {
        match ty {
            ComponentType::Component(declarations) => {
                for declaration in declarations {
                    match declaration {
                        ComponentTypeDeclaration::Type(inner) => self.of_type(inner)?,
                        // The name of the world itself is the author's, and nothing depends on a world.
                        ComponentTypeDeclaration::Export { name, ty }
                            if !matches!(ty, ComponentTypeRef::Component(_)) =>
                        {
                            self.add(name.name)?;
                        }
                        ComponentTypeDeclaration::Import(import) => self.add(import.name.name)?,
                        ComponentTypeDeclaration::Export { .. }
                        | ComponentTypeDeclaration::CoreType(_)
                        | ComponentTypeDeclaration::Alias(_) => {}
                    }
                }
            }
            ComponentType::Instance(declarations) => {
                for declaration in declarations {
                    match declaration {
                        InstanceTypeDeclaration::Type(inner) => self.of_type(inner)?,
                        InstanceTypeDeclaration::Export { name, .. } => self.add(name.name)?,
                        InstanceTypeDeclaration::CoreType(_) | InstanceTypeDeclaration::Alias(_) => {}
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Plain names (of functions and types) belong to the interface that they are in.
    fn add(&mut self, name: &str) -> Result<(), String> {
        if !name.contains(':') {
            return Ok(());
        }
        let version = name.rsplit_once('@').map_or("", |(_, version)| version);
        let agrees = self.version.get_or_insert_with(|| version.to_owned()) == version;
        if name.starts_with(PACKAGE) && agrees {
            return Ok(());
        }
        let short: String = name.chars().take(80).collect();
        Err(format!("it names the interface {short:?}, and may name those of {PACKAGE} in one version only"))
    }
}
